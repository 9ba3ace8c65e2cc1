// A recording as a graph of operations to plan.
#pragma once

#include <string>
#include <vector>

#include "capture/recording.h"
#include "reprise/model/graph.h"

namespace reprise::runtime {

struct CallCost {
  Nanos time;
  Bytes workspace;  // above the values that it reads and writes
};

struct CapturedGraph {
  Graph graph;
  std::vector<int32_t> call_of_op;     // by operation of the graph, position in Recording::calls
  std::vector<int32_t> step_value_of;  // by value of the graph; -1: an input of the step
};

// The last variant of an operation with two roles: it leaves running statistics alone.
inline constexpr const char* kReplayVariant = "replay";

// Calls that nothing needs are left out. Operations that write outside the step run once, and so do all
// that touch the same memory; a batch norm's replay does without its statistics. `costs` by call;
// values are rounded up as the allocator counts them. `fixed`: bytes that are live besides the step's
// inputs and its own.
CapturedGraph lower(const Recording& recording, const std::vector<CallCost>& costs,
                    const Tensors& inputs, Bytes fixed, const std::string& name);

}  // namespace reprise::runtime
