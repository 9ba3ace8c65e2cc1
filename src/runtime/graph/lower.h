// A recording as a graph of operations to plan.
#pragma once

#include <string>
#include <vector>

#include "runtime/step/recording.h"
#include "runtime/graph/updater.h"
#include "runtime/step/work.h"
#include "reprise/model/graph.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::graph {

struct WorkCost {
  Nanos time;
  Bytes workspace;  // above the values that it reads and writes
};

struct LoweredStep {
  Graph graph;
  std::vector<std::vector<int32_t>> works;  // by operation and variant: position in Works::all
  std::vector<int32_t> step_value_of;  // by value of the graph; -1: an input of the step, a parameter
};

// Calls that nothing needs are left out. Operations that write outside the step run once, and so do all
// that touch the same memory; a batch norm's replay does without its statistics. Other ways to run a call
// are variants of its operation; realizations are choices. `costs` by work; values are rounded up as the
// allocator counts them. `fixed`: bytes that are live besides the step's inputs and its own.
//
// Updates are a choice, too: the optimizer's step behind everything, as in plain training, or each update
// behind the last operation that reads its parameter or makes its gradient. The parameter before its update is a
// value of no bytes (they are in `fixed`): an operation that runs once writes all of them, whatever
// reads a parameter reads its value, the update consumes it. So no valid plan runs anything that reads a
// parameter, for the first time or again, after its update. Gradients that are used up are no results.
LoweredStep lower(const step::Recording& recording, const step::Works& works,
                    const rewrite::Alternatives& alternatives, const step::Updates& updates,
                    const std::vector<WorkCost>& costs, const Tensors& inputs, Bytes fixed,
                    const std::string& name);

}  // namespace reprise::runtime::internal::graph
