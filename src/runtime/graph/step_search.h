// Plans for a captured step whose memory can also be placed within the budget.
#pragma once

#include <optional>

#include "reprise/model/graph.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::graph {

// A plan, or why there is none, and what of the budget was set aside for its placement: fragments between
// the live bytes. `result.budget` is the whole one.
struct StepPlan {
  PlanResult result = {};
  Bytes slack = {};
  Nanos before_placement = {};  // time of the first plan, which may not have been placed
};

// As plan() is asked.
PlanOptions as_plan_options(const StepPlanOptions& options);

// What the budget leaves for the memory of the step itself: inputs are the caller's. `drift`: bytes that are
// live beside `graph.fixed` now.
Bytes room_of(const Graph& graph, const PlanResult& result, Bytes drift);

// A plan of the graph beside `graph.fixed`. With an arena and a budget: one whose memory can be placed, if the
// search finds one within the time limit; else one that the heap serves. `slack`: tried first. Throws
// what plan() throws.
StepPlan search_step(const Graph& graph, const StepPlanOptions& options, Bytes slack, bool arena);

// A plan that leaves so much more of the budget to its placement. Nothing: there is none, or it is so much slower
// than the first that the heap is the better choice.
std::optional<StepPlan> search_smaller(const Graph& graph, const StepPlanOptions& options,
                                       const StepPlan& now, Bytes more, Nanos time_limit);

}  // namespace reprise::runtime::internal::graph
