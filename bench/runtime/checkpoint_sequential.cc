#include "checkpoint_sequential.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace reprise::bench {

using runtime::Tensors;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

}  // namespace

struct CheckpointSegment : torch::autograd::Function<CheckpointSegment> {
  // torch::autograd::Function switches gradients off while forward() runs.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& /*dummy*/,
                               at::TensorList inputs, const CheckpointSequential* model,
                               int64_t first, int64_t last) {
    ctx->saved_data["model"] = reinterpret_cast<int64_t>(model);
    ctx->saved_data["first"] = first;
    ctx->saved_data["last"] = last;
    ctx->saved_data["random"] = generator().get_state();
    ctx->save_for_backward(inputs.vec());
    Tensors x = inputs.vec();
    for (int64_t i = first; i < last; ++i) x = model->stages_[i].forward(x);
    variable_list without;
    for (size_t e = 0; e < x.size(); ++e) {
      if (!model->carries_gradient_[last - 1][e]) without.push_back(x[e]);
    }
    ctx->mark_non_differentiable(without);
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& model =
        *reinterpret_cast<const CheckpointSequential*>(ctx->saved_data["model"].toInt());
    const int64_t first = ctx->saved_data["first"].toInt();
    const int64_t last = ctx->saved_data["last"].toInt();
    Tensors inputs;
    for (const at::Tensor& x : ctx->get_saved_variables()) {
      inputs.push_back(x.detach().set_requires_grad(x.requires_grad()));
    }
    const at::Tensor current = generator().get_state();
    generator().set_state(ctx->saved_data["random"].toTensor());
    Tensors outputs = inputs;
    {
      at::AutoGradMode with_grad(true);
      for (int64_t i = first; i < last; ++i) outputs = model.stages_[i].forward(outputs);
    }
    generator().set_state(current);
    variable_list roots, root_gradients;
    for (size_t e = 0; e < outputs.size(); ++e) {
      if (!outputs[e].requires_grad()) continue;
      roots.push_back(outputs[e]);
      root_gradients.push_back(gradients[e]);
    }
    torch::autograd::backward(roots, root_gradients);
    variable_list result{at::Tensor()};  // the dummy's gradient
    for (const at::Tensor& x : inputs) result.push_back(x.grad());
    result.resize(result.size() + 3);  // places of model, first and last
    return result;
  }
};

CheckpointSequential::CheckpointSequential(std::vector<runtime::Stage> stages,
                                           const Tensors& sample)
    : stages_(std::move(stages)) {
  Tensors x = sample;
  for (const runtime::Stage& stage : stages_) {
    x = stage.forward(x);
    std::vector<bool>& carries = carries_gradient_.emplace_back();
    for (const at::Tensor& t : x) carries.push_back(t.requires_grad());
  }
}

Tensors CheckpointSequential::forward(Tensors x, int64_t segments) const {
  const auto stages = static_cast<int64_t>(stages_.size());
  const int64_t length = stages / segments;
  int64_t first = 0;
  for (int64_t k = 0; k + 1 < segments; ++k, first += length) {
    const at::Tensor dummy = at::empty({1}).set_requires_grad(true);
    x = CheckpointSegment::apply(dummy, at::TensorList(x), this, first, first + length);
  }
  for (; first < stages; ++first) x = stages_[first].forward(x);
  return x;
}

}  // namespace reprise::bench
