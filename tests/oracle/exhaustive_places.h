// Finds the least time of any plan with copies of a small graph, by a search over all states of two
// memories. The second one is another device, or a memory in which nothing runs. The search knows
// the rules of a valid plan only: no recurrence, no planner, no flow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct BestPlan {
  bool finished = false;             // else the search gave up at `most_labels`
  std::optional<int64_t> time = {};  // none if no plan fits
  std::vector<Action> actions = {};  // a plan of that time
};

// Says which copies a plan may have.
enum class Copies {
  kAnywhere,       // every value, at any time
  kAroundTheLoss,  // activations and saved values, out before the loss and back behind it, once
};

// Over plans that run ops any number of times (those that run once in order), free values at any
// time, and copy values between the two memories of the machine, which has a channel each way. The
// graph has no choices and nothing consumed, and only what has its home in the second memory is
// reused. The budget is that of the first memory; the second one has its capacity. What has its
// home in the second memory moves.
//
// It is A* over labels, each with a state and the times at which copies are over, channels are
// free, and devices are done. A label is dropped if another one of the same state is nowhere later.
BestPlan best_with_copies(const Graph& graph, const Machine& machine, int64_t budget,
                          size_t most_labels, Copies copies = Copies::kAnywhere);

// The same over all choices of what stays on the device all the time of what has its home in the second
// memory. The cost is that of two searches to the power of the groups that stay or move together.
BestPlan best_placed(const Graph& graph, const Machine& machine, int64_t budget,
                     size_t most_labels);

}  // namespace reprise::testing
