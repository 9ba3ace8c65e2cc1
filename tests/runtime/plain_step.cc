#include "plain_step.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <cstring>
#include <unordered_set>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::testing {
namespace {

at::Tensor copy(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().clone() : at::Tensor();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

template <class Collect>
std::vector<at::Tensor> distinct(const std::vector<Stage>& stages, Collect&& collect) {
  std::vector<at::Tensor> result;
  std::unordered_set<void*> seen;
  for (const Stage& stage : stages) {
    if (!stage.module) continue;
    for (const at::Tensor& tensor : collect(*stage.module)) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
    }
  }
  return result;
}

void compare(const char* what, const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
             std::string& text) {
  if (a.size() != b.size()) text += fmt::format("{} {} against {}; ", a.size(), what, b.size());
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!same_bits(a[i], b[i])) text += fmt::format("{} {}; ", what, i);
  }
}

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

}  // namespace

std::vector<at::Tensor> parameters_of(const std::vector<Stage>& stages) {
  return distinct(stages, [](const torch::nn::Module& m) { return m.parameters(); });
}

std::vector<at::Tensor> buffers_of(const std::vector<Stage>& stages) {
  return distinct(stages, [](const torch::nn::Module& m) { return m.buffers(); });
}

Tensors run_plain(const std::vector<Stage>& stages, Tensors x) {
  for (const Stage& stage : stages) x = stage.forward(x);
  return x;
}

StepResult snapshot(const std::vector<Stage>& stages, const Tensors& inputs,
                    const at::Tensor& loss) {
  StepResult result;
  result.loss = copy(loss);
  for (const at::Tensor& p : parameters_of(stages)) result.gradients.push_back(copy(p.grad()));
  for (const at::Tensor& x : inputs) {
    result.input_gradients.push_back(x.requires_grad() ? copy(x.grad()) : at::Tensor());
  }
  for (const at::Tensor& b : buffers_of(stages)) result.buffers.push_back(copy(b));
  result.random = generator().get_state();
  return result;
}

std::string difference(const StepResult& a, const StepResult& b) {
  std::string text;
  if (!same_bits(a.loss, b.loss)) text += "loss; ";
  compare("gradient", a.gradients, b.gradients, text);
  compare("input gradient", a.input_gradients, b.input_gradients, text);
  compare("buffer", a.buffers, b.buffers, text);
  if (!same_bits(a.random, b.random)) text += "random state; ";
  return text;
}

StepState::StepState(const std::vector<Stage>& stages, Tensors inputs)
    : parameters_(parameters_of(stages)), inputs_(std::move(inputs)) {
  for (const at::Tensor& b : buffers_of(stages)) {
    buffers_.push_back(b.variable_data());
    copies_.push_back(copy(b));
  }
  random_ = generator().get_state();
}

void StepState::restore() const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) at::Tensor(buffers_[i]).copy_(copies_[i]);
  for (const at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
  for (const at::Tensor& x : inputs_) {
    if (x.requires_grad()) x.mutable_grad() = at::Tensor();
  }
  generator().set_state(random_);
}

StepResult plain_step(const std::vector<Stage>& stages, const Tensors& inputs, const Loss& loss,
                      int64_t* peak) {
  reset_peak(c10::kCPU);
  at::Tensor value = loss(run_plain(stages, inputs));
  value.backward();
  if (peak) *peak = memory_count(c10::kCPU).peak;
  return snapshot(stages, inputs, value);
}

}  // namespace reprise::runtime::testing
