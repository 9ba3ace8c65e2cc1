// Bounds how fast and how small a plan of a graph can be at best. The bound is proven for all valid
// plans.
#pragma once

#include <vector>

#include "plan/common/search_control.h"
#include "plan/graph/bound/moment.h"
#include "plan/graph/bound/params.h"
#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise::internal::bound {

struct GraphBound {
  Nanos time;               // no valid plan within the budget takes less
  Bytes least_peak;         // no valid plan has a smaller peak
  OpIndex blocking_op = 0;  // the op that needs it
  // The op that runs in every plan and whose moment gives the highest bound; -1: there is
  // none.
  OpIndex instant = -1;
  std::vector<Moment> promising;  // moments with high bounds, spread over the step
  // The values that the relaxed problem keeps while `instant` runs: first a set that fits into memory at that
  // moment, then a cheaper set that does not. The list is empty if
  // nothing need be dropped.
  std::vector<std::vector<ValueIndex>> kept;
};

// Returns the bound of a graph that has plain training. If time runs out, it is what is known so
// far. At the least it is the sum of the fastest variants. In a large graph only some instants are
// looked at. Without a time limit the same question has the same answer. O(instants) times some
// dozens of minimum cuts, each of O(ops + values) nodes.
GraphBound bound_graph(const Graph& graph, Bytes budget, common::SearchControl& control,
                       const BoundParams& params = {});

}  // namespace reprise::internal::bound
