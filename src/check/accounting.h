// Counts the bytes of a plan a second time, for verify(): value by value instead of action by
// action.
#pragma once

#include <optional>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"

namespace reprise {

// Wide holds every sum that actions on a valid graph can reach, so that no sum overflows.
__extension__ using Wide = __int128;

// The bytes of a memory in each time slot: at the start, and then while and after each of its actions.
using Levels = std::vector<Wide>;

// Counts the bytes of each memory of the machine; memory 0 has the graph's fixed bytes. The actions
// of a memory are its runs, frees, waits and sends, and the copies and receives that come to it; an
// action that is not there, because of an unknown id, does nothing in memory 0. Time slot 0 is the
// start, slot 2a + 1 is the time while action a of a memory runs, and slot 2a + 2 is the time after
// it. The life of each value is a set of intervals of slots; the sums of these intervals are the
// levels. A read or a free of a value that is not live does nothing either. The cost is
// O(values + memories + actions * values per action).
std::vector<Levels> interval_levels(const Graph& graph,
                                    const std::vector<std::optional<BoundAction>>& actions,
                                    const Machine& machine = {});

}  // namespace reprise
