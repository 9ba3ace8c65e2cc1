// The second count of the bytes of a plan, for verify(): value by value instead of action by
// action.
#pragma once

#include <optional>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"

namespace reprise {

// Holds every sum that actions on a valid graph can reach: no overflow to think of.
__extension__ using Wide = __int128;

struct Levels {
  Wide initial = 0;
  std::vector<Wide> during, after;  // one per action
};

// Every value's life is a set of intervals of time slots (0: the start, 2a + 1: while action a
// runs, 2a + 2: after it); their sums are the levels. Actions that are not there (an unknown id) do
// nothing, neither do reads and frees of what is not live. O(values + actions * values per action).
Levels interval_levels(const Graph& graph, const std::vector<std::optional<BoundAction>>& actions);

}  // namespace reprise
