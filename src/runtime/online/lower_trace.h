// Lowers the trace of a step in online mode to a graph that a planner understands.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/model/graph.h"
#include "runtime/online/trace.h"

namespace reprise::runtime::internal::online {

struct LoweredTrace {
  Graph graph;
  std::vector<int32_t> serials;  // by value of the graph: its position in Trace::values
};

// Returns the graph of a trace. Op c is call c, under the id "c", and value v has the id "v" with its
// number. Memory from before the step is no value of the graph, and neither is a tensor of fewer bytes
// than `smallest`, which is never evicted.
//
// - A call that cannot run again is an op that runs once, and so are all calls of the backward pass.
// - A write in place takes over the memory of the value before.
// - What can no longer be made again stays until the program lets go of it: the call before that reads
//   it. What the program holds when the step ends is a result.
// - Calls without a kernel of their own, such as views, have to find the bytes, too: the first run of
//   the next call reads what they looked at.
LoweredTrace lower(const Trace& trace, int64_t smallest);

// Returns the most bytes of tensors of fewer bytes than `smallest` that the step has at once.
int64_t most_small_bytes(const Trace& trace, int64_t smallest);

}  // namespace reprise::runtime::internal::online
