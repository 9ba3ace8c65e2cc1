// Lowers a recorded step to a graph of ops that a planner understands.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "runtime/graph/costs.h"
#include "runtime/rewrite/alternative.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::graph {

struct LoweredStep {
  Graph graph;
  // `works` has for each op and variant the position of its work in Works::all.
  std::vector<std::vector<int32_t>> works;
  // `step_value_of` has for each value of the graph its position in Recording::values. It is -1 for
  // an input of the step and for a parameter.
  std::vector<int32_t> step_value_of;
  // The devices of RewrittenStep::devices, each of which is a memory of the graph's machine.
  std::vector<c10::Device> devices = {};
  // Inputs of the step, parameters and buffers that other devices may read have values of the
  // graph, too. This says which externals they are.
  struct ExternalValue {
    int32_t external = -1;  // in Recording::externals
    int64_t bytes = 0;      // of the storage at capture
  };
  std::map<ValueIndex, ExternalValue> external_values = {};
  std::vector<int64_t> input_bytes = {};  // of the inputs' storages: the graph's first values
  Bytes external_bytes = {};  // counted: of the external values that are no inputs of the step
};

// Returns the graph of the step, called `name`. `costs` has an entry for each work. `inputs` are
// the caller's tensors; the bytes of all values are rounded up as the allocator counts them.
// `graph.fixed` is left at 0 for the caller.
//
// - A call becomes an op, unless nothing needs it. Other ways to run it are variants of the op.
//   Realizations are choices.
// - An op that writes outside the step runs once, and so does every op that touches the same
//   memory. A batch norm is an exception: its re-runs leave out its running statistics.
// - A guard of a host read is needed, and runs once in its place.
// - Updates are a choice, too. Either the optimizer's step stands behind everything, as in plain
//   training, or each update stands behind the last op that reads its parameter or makes its
//   gradient, and behind the last guard. A gradient that an update uses up is no result.
// - Gradients go into the buckets of a process group, whose sums start in a fixed order (follow_ups.h).
//   The waits for the sums stand behind the backward, or with the choice of updates before them.
// - The updates of a shard are one op a bucket, and no choice: the exchanges that follow them have
//   a fixed order among the sums.
//
// - A variant on another device reads everything there. A parameter that it reads is an input of
//   the graph with its bytes, which are not in `graph.fixed`.
//
// A parameter before its update is a value of no bytes, because its bytes are in `graph.fixed`. One
// op that runs once writes all of these values, every op that reads a parameter reads its value,
// and the update consumes it. So no valid plan runs anything that reads a parameter after the
// update, neither for the first time nor again.
LoweredStep lower(const rewrite::RewrittenStep& step, const std::vector<WorkCost>& costs,
                  const Tensors& inputs, const std::string& name);

}  // namespace reprise::runtime::internal::graph
