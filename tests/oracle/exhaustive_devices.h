// Finds the least time of any plan of a small graph on two devices, by a search over all states.
// The search knows the rules of a valid plan only: no layout, no planner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct BestOnDevices {
  bool finished = false;             // else the search gave up at `most_labels`
  std::optional<int64_t> time = {};  // none if no plan fits
  std::vector<Action> actions = {};  // a plan of that time
};

// Over plans that run ops any number of times (those that run once in order) on either device, copy
// values either way at any time, and free them at any time. The machine has two memories that
// compute, with a channel each way. The graph has no choices, no roles, nothing random, no reuses
// and nothing consumed. A* over labels (clocks, when channels are free, when copies are over),
// where a label is dropped if another one of the same state is nowhere later.
BestOnDevices best_on_devices(const Graph& graph, const Machine& machine, int64_t budget,
                              size_t most_labels);

}  // namespace reprise::testing
