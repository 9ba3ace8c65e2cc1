// These are facts about a step that the schemas of its operators do not state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace reprise::runtime::internal::step {

// A Scrutiny says how closely a run is watched. Memory of up to kLargestLiteral bytes is hashed
// before and after each call in all of them, because the host may write literals there.
enum class Scrutiny : uint8_t {
  kSmall,  // no other memory is hashed
  // Other memory is hashed once when it is made, and once behind each call that uses it. If it is
  // written where no schema says so, this shows that it was written, but not by whom.
  kOnce,
  kTwice,  // all memory is hashed before and after each call
};

// An Audit is found out by watching the bytes of storages through one run of a step.
struct Audit {
  // These are arguments that an operator writes without declaring it, as pairs of operator and
  // position.
  std::set<std::pair<std::string, size_t>> writes = {};
  // Memory was written that no schema declares, and Scrutiny::kTwice is needed to say by whom.
  bool unclear = false;
  // These are the allocator's serial numbers at the begin and at the end of the run.
  uint64_t begun = 0, ended = 0;
};

}  // namespace reprise::runtime::internal::step
