// This is a replay of a captured step that was recorded as a graph of the device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reprise/run/interpreter.h"
#include "runtime/arena/step_memory.h"
#include "runtime/device/device_graph.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/step_program.h"

namespace reprise::runtime::internal::graph {

// Says in words why a plan of the step cannot run as a device graph. The text is empty if it can, as
// far as the recording shows: the device may still refuse an operation.
std::string why_no_device_graph(const StepProgram& step, const Program& plan);

// A GraphedStep holds the graph, copies of the inputs at addresses that stay, and the arena. It is
// good as long as the arena and the addresses of parameters and buffers are those of the recording.
class GraphedStep {
 public:
  // Takes memory for the inputs.
  explicit GraphedStep(const Tensors& inputs);

  // Records the plan; nothing of it runs. The replay then holds the values that are left at the end
  // of the step. Throws what record_graph() throws. The arena has been given to this thread.
  void record(const step::Recording& recording, const Program& plan, Replay& replay);
  // Notes which values are left, and in which blocks of the arena they lie. Returns false if the
  // arena did not serve all of them.
  bool keep(size_t values, const Replay& replay, const arena::StepMemory& memory);

  // Says whether there is a graph that reads and writes what the step would read and write now.
  bool fits(const step::Recording& recording, const arena::StepMemory& memory) const;
  // Runs the graph. The replay holds the values that are left afterwards.
  void launch(const Tensors& inputs, Replay& replay, arena::StepMemory& memory);

 private:
  struct Left {
    size_t value = 0;  // of the recording
    arena::StepMemory::HeldBlock block;
  };

  Tensors inputs_;                      // copies of the caller's
  std::vector<const void*> addresses_;  // by external; null for inputs
  std::vector<Left> left_;
  std::unique_ptr<device::DeviceGraph> graph_;
  std::shared_ptr<void> arena_;
  bool fresh_ = false;  // The replay still holds the values that the recording left.
};

}  // namespace reprise::runtime::internal::graph
