// Bounds how fast a plan of a graph can be at best on a machine with several memories. The bound is
// proven for all valid plans with copies (docs/planners/graph_bound.md, Lemma 15).
#pragma once

#include "plan/common/search_control.h"
#include "plan/graph/bound/instant.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/units.h"

namespace reprise::internal::bound {

struct CopyBound {
  Nanos time;               // no valid plan within the budget takes less
  Bytes least_peak;         // no valid plan has a smaller peak
  OpIndex blocking_op = 0;  // the op that needs it
  OpIndex instant =
      -1;  // the op with the highest bound; -1: none is above the time of all first runs
  Instant::Places places;  // what the best cut does there
};

// Returns the times that the channels of a machine need at least for each value. Several channels
// count as one with the sum of their bandwidths. The machine must have a channel from the device
// and one back.
Instant::Carriage carriage_of(const Graph& graph, const Machine& machine);

// The graph must have plain training. If time runs out, the bound is what is known so far: at the
// least the sum of the fastest variants. Without a time limit the same question has the same
// answer. For each of some instants, the best shares are found by a search that ends where no
// neighbour is better. The cost is some hundred minimum cuts an instant.
CopyBound bound_with_copies(const Graph& graph, Bytes budget, const Machine& machine,
                            common::SearchControl& control);

}  // namespace reprise::internal::bound
