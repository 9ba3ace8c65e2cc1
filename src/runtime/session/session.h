// A Session is what a step or a model keeps from plan to plan, whatever its problem is.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/offload.h"
#include "reprise/runtime/shared_peak.h"
#include "runtime/device/overheads.h"
#include "runtime/device/step_log.h"
#include "runtime/distributed/ranks.h"
#include "runtime/transfer/choose.h"
#include "runtime/transfer/offload.h"

namespace reprise::runtime::internal::session {

// Returns the answer of a planner that a search has found, wherever it lies in what the search returns.
inline const PlanResult& result_in(const PlanResult& found) { return found; }
template <class Found>
const PlanResult& result_in(const Found& found) {
  if constexpr (requires { found.result; }) {
    return found.result;
  } else {
    return result_in(found.found);
  }
}

// A NoPlan is a search that found no plan, and what its error has to say.
struct NoPlan {
  std::string reason;        // of the planner, in words
  const PlanResult& result;  // without a plan
  Bytes live;                // beside what the plan is of
  Bytes level;               // what is live now, as `planned_level` was
  Bytes foreseen;            // of `live`: what the program will take later
  std::optional<SharedPeak> share_of = {};  // if the budget is a share
  Bytes inputs = {};                        // of this step
};

// A MemoryTrial compares plans with a second memory and without one.
struct MemoryTrial {
  const PlanResult& without;
  std::function<Nanos()> bound;  // Returns a time that no plan without a budget beats.
  std::function<transfer::Comparison()> with;  // Opens the memory and plans with it.
  const std::vector<TimeSpread>& spread;       // of the measured times
  std::string to;                              // the memory
};

struct Session {
  std::shared_ptr<distributed::Ranks> ranks;  // null in a process without a group
  // Values may move to this memory. There is none without `offload`.
  transfer::OpenedMemory offload_memory;
  // The bytes beside the first plan that was asked for. What comes later is named in errors.
  std::optional<Bytes> planned_level;
  device::Overheads overheads;
  device::StepLog log;

  // Calls the function. If it throws, the ranks hear of it.
  template <class Function>
  decltype(auto) telling(Function&& function) const {
    return distributed::telling(ranks.get(), std::forward<Function>(function));
  }
  // Searches a plan, and notes why, how long and what was found.
  template <class Search>
  auto note_search(std::string why, Search&& search) {
    return overheads.note("plan", std::move(why), std::forward<Search>(search),
                          [](const auto& found) { return device::found_text(result_in(found)); });
  }
  // Opens and measures the memory that the options name. Ranks agree on its machine.
  transfer::OpenedMemory open_second_memory(const OffloadOptions& asked, c10::Device device,
                                            const Observer& observer) const;
  // Returns the memory that "auto" stands for on all ranks. Opens nothing.
  transfer::AutoMemory memory_for_auto(const OffloadOptions& asked, c10::Device device) const;
  // Says for all ranks whether values should move (transfer/choose.h). It plans with the memory only if that
  // may pay.
  transfer::Verdict weigh_moving(const MemoryTrial& trial) const;
  BudgetError error_of(const NoPlan& found) const;
};

}  // namespace reprise::runtime::internal::session
