// How fast and how small a plan of a graph can be at best: a certified bound over every valid plan.
#pragma once

#include <vector>

#include "plan/graph/bound/moment.h"
#include "plan/common/search_control.h"
#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise::internal::bound {

struct GraphBound {
  Nanos time;               // no valid plan within the budget takes less
  Bytes least_peak;         // no valid plan has a smaller peak
  OpIndex blocking_op = 0;  // the op that needs it
  OpIndex instant =
      -1;  // of those that run in every plan, the op whose moment gives most; -1: none
  std::vector<Moment> promising;  // with high bounds, some apart from each other
  // What to keep while `instant` runs, of the relaxed problem: first one set that fits the memory
  // of that moment, then one that is cheaper and does not. Empty when nothing need be dropped.
  std::vector<std::vector<ValueIndex>> kept;
};

// A graph with plain training. When time runs out, what is known so far; with no time at all, that
// of the sum of the fastest variants. Few instants of a large graph are looked at, all of a small
// one. Without a limit of time the same question has the same answer. O(instants) times some dozens
// of minimum cuts, each O(ops + values) nodes.
GraphBound bound_graph(const Graph& graph, Bytes budget, common::SearchControl& control);

}  // namespace reprise::internal::bound
