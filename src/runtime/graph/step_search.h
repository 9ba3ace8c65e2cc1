// Searches plans of a captured step whose memory can also be placed within the budget.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "reprise/model/graph.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::graph {

// A StepPlan is a plan, or the reason why there is none, and the bytes of the budget that were set
// aside for its placement, which leaves holes between live bytes. `result.budget` is the whole
// budget.
struct StepPlan {
  PlanResult result = {};
  Bytes slack = {};
  Nanos before_placement = {};  // time of the first plan, before plans with more slack
};

// Returns the options for plan(). `options.offload` has its machine, if it names a memory.
PlanOptions as_plan_options(const StepPlanOptions& options);

// Returns the bytes that the budget leaves for the memory of the step itself, without the caller's
// inputs. `drift` are the bytes that are live now beside `graph.fixed`.
Bytes room_of(const Graph& graph, const PlanResult& result, Bytes drift);

// Returns the bytes that the plan of a result needs for the memory of the step itself.
Bytes step_bytes(const Graph& graph, const PlanResult& result);

// Searches a plan of the graph beside `graph.fixed`. With an arena and a budget it returns a plan
// whose memory can be placed, if it finds one within the time limit, else a plan that the heap
// serves. It sets `slack` bytes aside first. `arena` is the device of the arena; without one, the heap
// serves the step. Throws what plan() throws.
StepPlan search_step(const Graph& graph, const StepPlanOptions& options, Bytes slack,
                     std::optional<c10::Device> arena);

// Searches a plan that leaves `more` bytes of the budget to its placement. Returns nothing if there
// is none, or if it is so much slower than the first plan that the heap is the better choice.
std::optional<StepPlan> search_smaller(const Graph& graph, const StepPlanOptions& options,
                                       const StepPlan& now, Bytes more, Nanos time_limit);

}  // namespace reprise::runtime::internal::graph
