// A bound on the time of every plan of a graph, raised by distinguishing cases.
#pragma once

#include "plan/graph/bound/bound.h"
#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::bound {

// No valid plan within the budget takes less; at least `root.time`, the bound of bound_graph(). Ends
// when the cases have become too many, or when time is up. Without a limit of time the same question
// has the same answer. O(cases) times two dozen instants, or, where stretches of time add up,
// some hundred; and once some dozens of pairs of instants.
Nanos split_bound(const common::GraphFacts& facts, Bytes budget, const GraphBound& root,
                  const common::SearchControl& control);

}  // namespace reprise::internal::bound
