// torch::nn::Sequential as stages.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <vector>

#include "reprise/runtime/remat.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// One stage a child. A child that has children of its own is one stage: its forward need not be theirs in
// order. The stages share the modules of `model`.
std::vector<Stage> stages_of(const torch::nn::Sequential& model);

// Children keep their names in `model` ("0", "1", ...), so that state_dict keys are unchanged.
std::shared_ptr<Remat> remat(const torch::nn::Sequential& model, const at::Tensor& sample,
                             RematOptions options = {});

}  // namespace reprise::runtime
