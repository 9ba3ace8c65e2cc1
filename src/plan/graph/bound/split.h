// Bounds the time of every plan of a graph. Cases, stretches and pairs of instants raise the bound.
#pragma once

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/bound/params.h"
#include "reprise/model/units.h"

namespace reprise::internal::bound {

// No valid plan within the budget takes less time. The bound is at least `root.time`, that of
// bound_graph(). The search ends when there are too many cases, or when time is up. Without a time
// limit the same question has the same answer. O(cases) times two dozen instants, or some hundred
// where stretches add up; and once some dozens of pairs.
Nanos split_bound(const common::GraphFacts& facts, Bytes budget, const GraphBound& root,
                  const common::SearchControl& control, const BoundParams& params = {});

}  // namespace reprise::internal::bound
