#include "runtime/chain/plan_key.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

namespace reprise::runtime::internal::chain {

using state::AutocastState;

namespace {

// Visits the modules like Module::modules(), which would also make a path of names for each.
void add(const torch::nn::Module& module, ModelContents& contents) {
  contents.training.push_back(module.is_training());
  for (at::Tensor& t : module.parameters(false)) contents.parameters.push_back(std::move(t));
  for (at::Tensor& t : module.buffers(false)) contents.buffers.push_back(std::move(t));
  for (const auto& child : module.children()) add(*child, contents);
}

}  // namespace

ModelContents contents_of(const std::vector<StageBranch>& branches,
                          const std::vector<Stage>& tail) {
  ModelContents contents;
  std::unordered_set<const torch::nn::Module*> seen;  // unrolled loops repeat modules
  const auto add_all = [&](const std::vector<Stage>& stages) {
    for (const Stage& stage : stages) {
      if (stage.module && seen.insert(stage.module.get()).second) add(*stage.module, contents);
    }
  };
  for (const StageBranch& branch : branches) add_all(branch.stages);
  add_all(tail);
  return contents;
}

PlanKey key_of(const std::vector<Tensors>& inputs, const ModelContents& contents) {
  PlanKey key{
      {}, {}, contents.training, AutocastState(inputs.at(0).at(0).device()), at::get_num_threads()};
  for (size_t b = 0; b < inputs.size(); ++b) {
    for (const at::Tensor& x : inputs[b]) {
      key.inputs.push_back(
          {b, x.sizes().vec(), x.strides().vec(), x.scalar_type(), x.device(), x.requires_grad()});
    }
  }
  auto hold = [&](const at::Tensor& t) {
    key.residents.push_back(
        {t.unsafeGetTensorImpl(), t.scalar_type(), t.device(), t.requires_grad()});
  };
  for (const at::Tensor& parameter : contents.parameters) hold(parameter);
  for (const at::Tensor& buffer : contents.buffers) hold(buffer);
  return key;
}

}  // namespace reprise::runtime::internal::chain
