// Looks at the stages of a model once for each kind of input, before anything is measured or
// planned.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/chain/stage_runner.h"

namespace reprise::runtime::internal::chain {

// The stages as the runtime will run them. They are bound to shapes, types, train flags and
// autocast state.
struct PreparedModel {
  std::vector<PreparedStage> stages;
  std::vector<at::Tensor> parameters;  // those that require gradients, each once, in module order
  std::vector<at::Tensor> buffers;     // those that a forward pass advances, each once
  c10::Device device{c10::kCPU};
};

// Runs each stage forward twice, once kept and once fast (and up to three times more if the two
// differ), and finds out its StageTraits. A stage that only returns views of its input is joined to
// the stage before it. Leaf tensors that only the function of a stage knows become parameters of
// the stage. Buffers and random state are put back. Throws InputError (with the stage's name) when
// a stage fails, returns no tensor, mixes devices, does not repeat itself, writes its parameters,
// writes one of several inputs in one memory, or uses a tensor from outside that has a history.
PreparedModel prepare(const std::vector<Stage>& stages, const Tensors& sample);

}  // namespace reprise::runtime::internal::chain
