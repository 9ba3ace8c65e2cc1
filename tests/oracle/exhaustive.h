// The least time of any valid plan of a small graph, by searching all sets of live values. Knows
// the rules of a valid plan only: no recurrence, no planner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise::testing {

// Where an op runs, a value is live, or is not: not counting values that the op takes or writes.
struct Condition {
  OpIndex op;
  ValueIndex value;
  bool live;
};

// Over every valid plan of a graph within `budget` bytes: ops any number of times in any variant,
// those that run once in order, of a choice any realization, values freed at any time. None if no
// plan fits. Dijkstra over (live values, last of the ordered ops, which others have run); at most
// 64 values, and 64 ops. With conditions, over the plans that meet all of them.
std::optional<int64_t> least_time_of_any_plan(const Graph& graph, int64_t budget,
                                              const std::vector<Condition>& conditions = {});

}  // namespace reprise::testing
