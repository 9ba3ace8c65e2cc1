// Finds the least time of any plan of a small graph on two devices, by a search over all states.
// The search knows the rules of a valid plan only: no layout, no planner.
#pragma once

#include <cstdint>

#include "oracle/label_search.h"
#include "reprise/model/machine.h"

namespace reprise::testing {

// Over plans that run ops any number of times (those that run once in order) on either device, copy
// values either way at any time, and free them at any time. The machine has two memories that
// compute, with a channel each way. The graph has no choices, no roles, nothing random, no reuses
// and nothing consumed. Times are clocks, when channels are free, and when copies are over.
BestPlan best_on_devices(const Graph& graph, const Machine& machine, int64_t budget,
                         size_t most_labels);

}  // namespace reprise::testing
