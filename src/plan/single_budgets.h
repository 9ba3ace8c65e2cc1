// curve_of_single_budgets() finds the time/memory curve of a problem for which no planner has a
// search of its own: it plans at single budgets. Problems on a machine with several memories are
// such problems.
//
// Budgets lie between the smallest that the planner names and plain training's, and are asked for
// from coarse to fine. A plan belongs to its peak, so that it stands in the curve at the smallest
// budget that it fits into. Nothing is asked between two plans of the same time, nor where a plan
// for a larger budget already fits.
#pragma once

#include <functional>

#include "reprise/model/frontier.h"
#include "reprise/plan/plan.h"

namespace reprise::internal {

// `ask` plans at the budget and within the time limit of its options. There are at most
// kMostSingleBudgets calls, which share the time limit of `options`. The curve names no problem.
// Its bounds hold for the schedule class of the answer at the largest budget, `most`. The curve has
// no points if no plan was found in time.
inline constexpr int kMostSingleBudgets = 35;

Frontier curve_of_single_budgets(const std::function<PlanResult(const PlanOptions&)>& ask,
                                 const PlanOptions& options, Bytes most);

}  // namespace reprise::internal
