// Facts about the operators of a step that their schemas do not state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::step {

// An Audit is found out by watching the bytes of every storage through one run of a step.
struct Audit {
  // These are arguments that an operator writes without declaring it, as pairs of operator and
  // position.
  std::set<std::pair<std::string, size_t>> writes;
  std::vector<bool> draws;  // by call: whether it advanced a random generator
  // These are values whose bytes the host wrote without an operator, as at::tensor({1, 2, 3}) does,
  // with the bytes that the first operation read.
  std::map<int32_t, HostBytes> host_written;
  uint64_t begun = 0;  // the allocator's serial number at the begin of the run
};

}  // namespace reprise::runtime::internal::step
