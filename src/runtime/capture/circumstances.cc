#include "capture/circumstances.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reprise::runtime {

Circumstances::Circumstances(const Tensors& inputs, const CaptureOptions& options)
    : autocast_(inputs.empty() || !inputs[0].defined() ? c10::Device(c10::kCPU)
                                                       : inputs[0].device()),
      grad_mode_(at::GradMode::is_enabled()),
      kernels_(kernels_now()) {
  for (const at::Tensor& tensor : inputs) {
    Input& input = inputs_.emplace_back();
    if (!tensor.defined()) continue;
    input = {geometry_of(tensor), tensor.device().str(), true, tensor.requires_grad()};
  }
  for (const auto& root : options.modules) {
    for (const auto& module : root->modules()) {
      ModuleState& state = modules_.emplace_back();
      state.training = module->is_training();
      for (const at::Tensor& tensor : module->parameters(false)) {
        state.tensors.push_back(tensor.unsafeGetTensorImpl());
      }
      for (const at::Tensor& tensor : module->buffers(false)) {
        state.tensors.push_back(tensor.storage().unsafeGetStorageImpl());
      }
    }
  }
}

Circumstances::Kernels Circumstances::kernels_now() {
  return {.threads = at::get_num_threads(),
          .onednn = at::globalContext().userEnabledMkldnn(),
          .nnpack = at::globalContext().userEnabledNNPACK()};
}

std::string Circumstances::text_of(const Input& input) {
  if (!input.defined) return "an undefined tensor";
  return fmt::format("{}[{}] with strides [{}] at offset {} on {}{}",
                     c10::toString(input.geometry.dtype), fmt::join(input.geometry.sizes, ", "),
                     fmt::join(input.geometry.strides, ", "), input.geometry.offset, input.device,
                     input.requires_grad ? ", which wants a gradient" : "");
}

std::string Circumstances::difference(const Circumstances& now) const {
  if (inputs_.size() != now.inputs_.size()) {
    return fmt::format("{} inputs instead of {}", now.inputs_.size(), inputs_.size());
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i] == now.inputs_[i]) continue;
    return fmt::format("input {} is {} instead of {}", i, text_of(now.inputs_[i]),
                       text_of(inputs_[i]));
  }
  if (grad_mode_ != now.grad_mode_) return "gradients are switched off or on";
  if (!(autocast_ == now.autocast_)) return "autocast is in another state";
  if (kernels_.threads != now.kernels_.threads) {
    return fmt::format("operations have {} threads instead of {}", now.kernels_.threads,
                       kernels_.threads);
  }
  if (!(kernels_ == now.kernels_)) return "oneDNN or NNPACK is switched off or on";
  if (modules_.size() != now.modules_.size()) return "a module has other children";
  for (size_t m = 0; m < modules_.size(); ++m) {
    if (modules_[m].training != now.modules_[m].training) {
      return fmt::format("a module is in {} mode",
                         now.modules_[m].training ? "training" : "evaluation");
    }
    if (modules_[m].tensors != now.modules_[m].tensors) {
      return "a module has other parameters or buffers";
    }
  }
  return {};
}

}  // namespace reprise::runtime
