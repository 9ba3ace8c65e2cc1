// Finds the least time of any valid plan of a small graph, by searching all sets of live values. It
// knows the rules of a valid plan only, and no recurrence or planner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise::testing {

// A condition says that a value is live, or is not, when an op runs. Values that the op takes or
// writes do not count as live.
struct Condition {
  OpIndex op;
  ValueIndex value;
  bool live;
};

// Returns the least time over every valid plan of a graph within `budget` bytes, or nothing if no
// plan fits. Such a plan may run ops any number of times in any variant, runs ordered ops in order,
// takes any realization of a choice, and frees values at any time. With conditions, only plans that
// meet all of them count.
//
// The search is Dijkstra's over (live values, last ordered op that ran, which other ops have run).
// It takes at most 64 values and 64 ops.
std::optional<int64_t> least_time_of_any_plan(const Graph& graph, int64_t budget,
                                              const std::vector<Condition>& conditions = {});

}  // namespace reprise::testing
