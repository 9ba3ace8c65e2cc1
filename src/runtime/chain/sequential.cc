#include "reprise/runtime/sequential.h"

namespace reprise::runtime {
// A child with children is one stage, too. LibTorch only stores children with a forward of their
// own (a residual block, say), which need not be the composition of their children.
std::vector<Stage> stages_of(const torch::nn::Sequential& model) {
  std::vector<Stage> stages;
  const auto children = model->named_children();
  size_t position = 0;
  for (torch::nn::AnyModule any : *model) {
    stages.push_back(
        {children[position++].key(), any.ptr(),
         [any](const Tensors& x) mutable -> Tensors { return {any.forward(x.at(0))}; }});
  }
  return stages;
}

std::shared_ptr<Remat> remat(const torch::nn::Sequential& model, const at::Tensor& sample,
                             RematOptions options) {
  auto planned = std::make_shared<Remat>(stages_of(model), std::move(options));
  // The children get their keys in `model`. A module that stands there several times has a key for
  // each place.
  for (const std::string& name : planned->named_children().keys()) {
    planned->unregister_module(name);
  }
  for (const auto& child : model->named_children()) {
    planned->register_module(child.key(), child.value());
  }
  planned->plan_for({sample});
  return planned;
}

}  // namespace reprise::runtime
