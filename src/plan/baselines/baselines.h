// These planners are baselines that others are compared with. Each is described in its own source
// file; registry.cc has a row for each.
#pragma once

#include <vector>

#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::baselines {

// keep_all.cc
Answer keep_all_chain(const ChainProblem& problem);
Answer keep_all_graph(const GraphProblem& problem);
Curve keep_all_frontier(const ChainProblem& problem);

// periodic.cc
Answer periodic_chain(const ChainProblem& problem);
Curve periodic_frontier(const ChainProblem& problem);

// min_peak.cc
Answer min_peak_chain(const ChainProblem& problem);
Curve min_peak_frontier(const ChainProblem& problem);

// revolve.cc
Answer revolve_chain(const ChainProblem& problem);
Curve revolve_frontier(const ChainProblem& problem);

// dtr.cc
Answer dtr_graph(const GraphProblem& problem);

// These functions consider the schedules of a family, for planners that need a plan to start from
// or to fall back on. They return false if time ran out before every candidate was considered.
// Among the sets of checkpoints, the first function considers the fastest within the budget, or that
// with the smallest peak if none fits.
bool consider_min_peak(const Chain& chain, Bytes budget, common::Candidates& candidates,
                       common::SearchControl& control);
bool consider_revolve(const Chain& chain, common::Candidates& candidates,
                      common::SearchControl& control);
bool consider_dtr(const Graph& graph, Bytes budget, common::Candidates& candidates,
                  common::SearchControl& control);

}  // namespace reprise::internal::baselines
