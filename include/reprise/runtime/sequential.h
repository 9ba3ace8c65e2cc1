// Makes stages of a torch::nn::Sequential.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <vector>

#include "reprise/runtime/remat.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// Each child is one stage. A child with children of its own is one stage, too, because its forward
// need not run them in order. The stages share the modules of `model`.
std::vector<Stage> stages_of(const torch::nn::Sequential& model);

// Children keep their names in `model` ("0", "1", ...), so state_dict keys are unchanged.
std::shared_ptr<Remat> remat(const torch::nn::Sequential& model, const at::Tensor& sample,
                             RematOptions options = {});

}  // namespace reprise::runtime
