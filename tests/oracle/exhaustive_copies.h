// Finds the least time of any plan with copies of a small chain or graph, by a search over all
// states of two memories. The search knows the rules of a valid plan only: no recurrence, no
// planner, no flow.
#pragma once

#include <cstdint>

#include "oracle/label_search.h"
#include "reprise/model/machine.h"

namespace reprise::testing {

// Says which copies a plan may have.
enum class Copies {
  kAroundTheLoss,  // activations and saved values, out before the loss and back behind it
  kAnywhere,  // every value that is no input, at any time; it stays elsewhere when it comes back
};

// Over plans that run ops any number of times (those that run once in order), free values at any
// time, and copy values to memory 1 and back; a value is copied out at most once. The machine has
// two memories, with a channel each way. The graph has at most 24 values that are no inputs, no
// choices, no reuses and nothing consumed. Times are that of the compute stream, when channels are
// free, and when copies arrive.
BestPlan best_plan_with_copies(const Graph& graph, const Machine& machine, int64_t budget,
                               size_t most_labels, Copies copies = Copies::kAroundTheLoss);

}  // namespace reprise::testing
