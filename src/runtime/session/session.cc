#include "runtime/session/session.h"

#include "runtime/device/activity.h"
#include "runtime/device/level_text.h"
#include "runtime/distributed/shared_plan.h"

namespace reprise::runtime::internal::session {

using distributed::SharedDecision;
using transfer::AutoMemory;
using transfer::OpenedMemory;
using transfer::Verdict;

OpenedMemory Session::open_second_memory(const OffloadOptions& asked, c10::Device device,
                                         const Observer& observer) const {
  const device::Measuring alone;
  if (observer) observer({"profile", 0, "the memory behind the device"});
  OpenedMemory memory = telling([&] { return transfer::open_memory(asked, device); });
  if (ranks) distributed::agree_on_machine(*ranks, memory.machine, device);
  return memory;
}

AutoMemory Session::memory_for_auto(const OffloadOptions& asked, c10::Device device) const {
  AutoMemory mine = telling([&] { return transfer::memory_for_auto(asked, device); });
  const std::string none = distributed::first_reason(
      ranks.get(), mine.options.to.empty() ? mine.why : "", "its memories");
  return none.empty() ? mine : AutoMemory{{}, none};
}

Verdict Session::weigh_moving(const MemoryTrial& trial) const {
  const auto by_first = [&](const std::function<Verdict()>& judge) {
    const auto [moves, why] = distributed::decision_of_first(ranks.get(), [&] {
      const Verdict mine = judge();
      return SharedDecision{mine.moves, mine.why};
    });
    return Verdict{moves, why};
  };
  const Verdict early =
      by_first([&] { return transfer::weigh_before(trial.without, trial.bound()); });
  if (!early.why.empty()) return early;
  const transfer::Comparison both = trial.with();
  return by_first([&] { return transfer::weigh(both, trial.spread, trial.to); });
}

BudgetError Session::error_of(const NoPlan& found) const {
  std::string message = found.reason + device::with_foreseen(found.foreseen);
  if (planned_level) message += device::with_growth(*planned_level, found.level);
  if (found.share_of) message += beyond_first_batch(*found.share_of, found.inputs);
  return BudgetError(message, found.result.budget.count(), found.live.count(),
                     found.result.smallest_budget.value_or(Bytes(0)).count());
}

}  // namespace reprise::runtime::internal::session
