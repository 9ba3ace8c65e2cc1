// These are graphs without the variants that no plan within a budget can use.
#pragma once

#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise::internal::graph {

// A PossibleGraph is a graph that has the same valid plans within a budget as another graph. Its
// ops and variants have other numbers.
struct PossibleGraph {
  Graph graph;
  std::vector<std::vector<Run>> runs;  // by op and variant: the run in the other graph
};

// Leaves out the variants that need more memory than the budget in every plan, and the realizations
// that lose an op by that. Returns nothing if there is nothing to leave out, if the rest is no
// valid graph with plain training to start from, or if it has no plan at all. O(ops) minimum cuts.
std::optional<PossibleGraph> leave_out_impossible(const Graph& graph, Bytes budget,
                                                  const common::SearchControl& control);

}  // namespace reprise::internal::graph
