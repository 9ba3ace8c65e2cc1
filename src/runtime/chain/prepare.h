// Look at the stages of a model once, for one kind of input, before anything is measured or planned.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/chain/stage_runner.h"

namespace reprise::runtime::internal::chain {

// The stages as the runtime will run them. Bound to shapes, types, train flags and autocast state.
struct PreparedModel {
  std::vector<PreparedStage> stages;
  std::vector<at::Tensor> parameters;  // that require gradients, each once, in module order
  std::vector<at::Tensor> buffers;     // that a forward pass advances, each once
  c10::Device device{c10::kCPU};
};

// Runs each stage forward twice, once as kept and once fast (and once more where the two differ), and finds out
// what StageTraits says. A stage that only returns views of its input is joined to the one before it. Leaf tensors
// that only its function knows become parameters of a stage. Buffers and random state are put back. InputError
// (with the stage's name) when a stage fails, returns no tensor, mixes devices, does not repeat itself, writes its
// parameters or one of several inputs in one memory, or uses a tensor that has a history from outside.
PreparedModel prepare(const std::vector<Stage>& stages, const Tensors& sample);

}  // namespace reprise::runtime::internal::chain
