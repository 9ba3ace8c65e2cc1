#include "reprise/runtime/sequential.h"

namespace reprise::runtime {
namespace {

void append_stages(const torch::nn::SequentialImpl& model, const std::string& prefix,
                   std::vector<Stage>& stages) {
  const auto children = model.named_children();
  size_t position = 0;
  for (torch::nn::AnyModule any : model) {
    const std::string name = prefix + children[position++].key();
    std::shared_ptr<torch::nn::Module> module = any.ptr();
    if (auto nested = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module)) {
      append_stages(*nested, name + ".", stages);
      continue;
    }
    stages.push_back({name, module, [any](const Tensors& x) mutable -> Tensors {
                        return {any.forward(x.at(0))};
                      }});
  }
}

}  // namespace

std::vector<Stage> stages_of(const torch::nn::Sequential& model) {
  std::vector<Stage> stages;
  append_stages(*model, "", stages);
  return stages;
}

std::shared_ptr<Remat> remat(const torch::nn::Sequential& model, const at::Tensor& sample,
                             RematOptions options) {
  auto planned = std::make_shared<Remat>(stages_of(model), std::move(options));
  // The children as they are in `model`, instead of one a stage: nested keys ("1.0.weight") stay.
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
