// The least time of any valid plan of a small chain, by searching all sets of live values. Knows
// the graph only: no recurrence, no planner.
#pragma once

#include <cstdint>
#include <optional>

#include "reprise/model/graph.h"

namespace reprise::testing {

// Over every plan of a lowered chain within `budget` bytes: forwards any number of times in any
// variant, the loss and each backward once and in order, values freed at any time. None if no plan
// fits. Dijkstra over (live values, next of the ordered ops); at most 58 values.
std::optional<int64_t> least_time_of_any_plan(const Graph& graph, int64_t budget);

}  // namespace reprise::testing
