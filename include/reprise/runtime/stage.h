// What the user's model is to the runtime: a list of stages, each a function of the tensors that the
// stage before returned.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reprise::runtime {

using Tensors = std::vector<at::Tensor>;

// One stage of a model. `forward` may be run several times for one step, with and without gradients,
// and must do the same work each time, apart from random numbers (replayed) and buffers of `module`
// (advanced once). It may change its input in place and may return a view of it: both are noticed
// when the stage is measured, and paid with a copy of what they touch.
struct Stage {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;  // owns the parameters and buffers; may be null
  std::function<Tensors(const Tensors&)> forward;
};

}  // namespace reprise::runtime
