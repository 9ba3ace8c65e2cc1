// This is a plan for steps in online mode that repeat, as a follower executes it call by call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "reprise/model/units.h"
#include "runtime/online/trace.h"

namespace reprise::runtime::internal::online {

// A PlannedAction is what the plan wants before a call. The first runs of the calls are the step's
// own, and no actions.
struct PlannedAction {
  enum class Kind : uint8_t {
    kRunAgain,  // RecordedCall `of` runs again, if something that it makes is needed and not there.
    kRelease,   // Value `of` may be evicted from here on.
  };
  Kind kind = Kind::kRunAgain;
  // With kRunAgain: what it makes is needed when the actions before the call are over.
  bool stays = false;
  int32_t of = 0;
  // With kRelease: the action that makes the value again; the number of actions if none does.
  int32_t made_again_at = 0;
};

struct OnlinePlan {
  Trace trace;
  std::vector<PlannedAction> actions;
  // By call: its first action. Behind them stand the first action behind the last call, and the end.
  std::vector<uint32_t> before;
  // By value: the plan reads it in a re-run before it releases it for the first time. The program may
  // let go of it earlier.
  std::vector<bool> outlives;
  double planned_cost = 0;  // of the re-runs, in nanoseconds

  std::span<const PlannedAction> before_call(size_t call) const {
    return std::span(actions).subspan(before[call], before[call + 1] - before[call]);
  }
};

struct OnlinePlanOptions {
  Bytes budget = {};     // of all live bytes
  Bytes reserve = {};    // of the budget, for what the trace does not show
  int64_t smallest = 0;  // bytes; smaller tensors are not evicted
  Nanos time_limit = {};
  std::stop_token stop{};  // ends the search at once
};

// Returns a plan of the trace, or sets `why_not`. The calls stay in their order. It reads nothing but
// its arguments, and it takes no memory of tensors, so it may run on any thread.
std::optional<OnlinePlan> plan_step(const Trace& trace, const OnlinePlanOptions& options,
                                    std::string& why_not);

}  // namespace reprise::runtime::internal::online
