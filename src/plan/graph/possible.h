// Graphs without what no plan within a budget can do.
#pragma once

#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise::internal::graph {

// A graph that has the valid plans within a budget of another graph, by other numbers.
struct PossibleGraph {
  Graph graph;
  std::vector<std::vector<Run>> runs;  // by op and variant: those of the other graph
};

// Without the variants that need more memory than the budget in every plan, and without the
// realizations that thereby lose an op. None if nothing is to be left out, or if the rest is no valid
// graph with plain training to start from, or has no plan at all. O(ops) minimum cuts.
std::optional<PossibleGraph> leave_out_impossible(const Graph& graph, Bytes budget,
                                                  const common::SearchControl& control);

}  // namespace reprise::internal::graph
