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

}  // namespace reprise::runtime
