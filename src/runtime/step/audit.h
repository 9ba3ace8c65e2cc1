// What an operation does that its schema does not say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace reprise::runtime::internal::step {

// Found out by watching the bytes of every storage through one run of a step.
struct Audit {
  // Arguments that an operator writes without declaring it: (operator, position).
  std::set<std::pair<std::string, size_t>> writes;
  std::vector<bool> draws;  // by call: it advanced a random generator
  // Values whose bytes the host put there, without an operator (at::tensor({1, 2, 3})).
  std::set<int32_t> host_written;
  uint64_t begun = 0;  // the allocator's serial number when the run began
};

}  // namespace reprise::runtime::internal::step
