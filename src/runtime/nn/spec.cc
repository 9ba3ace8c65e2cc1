#include "runtime/nn/spec.h"

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::nn {
namespace {

// Hooks of the user (checkpoints, offloading) see what a TiledFunction saves, and not the tensors of
// its tiles.
class NoSavedTensorHooks {
 public:
  NoSavedTensorHooks() : before_(at::SavedTensorDefaultHooks::get_tls_state()) {
    at::SavedTensorDefaultHooks::set_tls_state({});
  }
  ~NoSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tls_state(before_); }
  NoSavedTensorHooks(const NoSavedTensorHooks&) = delete;
  NoSavedTensorHooks& operator=(const NoSavedTensorHooks&) = delete;

 private:
  at::impl::SavedTensorDefaultHooksTLS before_;
};

}  // namespace

at::Tensor call(const Spec& spec, const Tensors& operands, at::IntArrayRef shape,
                std::optional<at::ScalarType> expected) {
  at::Tensor result = spec.function(operands);
  if (!result.defined()) {
    throw InputError("the element-wise function returned no tensor: return the result");
  }
  if (result.sizes() != shape) {
    throw InputError(c10::str("the function is not element-wise: its operands have the shape ",
                              shape, ", and it returned a tensor of the shape ", result.sizes(),
                              ". Call it plainly, without tiles"));
  }
  if (expected && result.scalar_type() != *expected) {
    throw InputError(c10::str("the element-wise function returned the type ", *expected,
                              " for one tile and ", result.scalar_type(),
                              " for another: return one type"));
  }
  return result;
}

Differentiated call_with_leaves(const Spec& spec, const Tensors& operands,
                                const std::vector<bool>& wanted, at::IntArrayRef shape,
                                std::optional<at::ScalarType> expected) {
  Differentiated called;
  for (size_t i = 0; i < operands.size(); ++i) {
    called.leaves.push_back(operands[i].detach());
    if (wanted[i]) called.leaves.back().requires_grad_();
  }
  const NoSavedTensorHooks no_hooks;
  const bool any = std::find(wanted.begin(), wanted.end(), true) != wanted.end();
  const at::AutoGradMode with_gradients(any || at::GradMode::is_enabled());
  called.result = call(spec, called.leaves, shape, expected);
  return called;
}

Tensors gradients(const Differentiated& called, const std::vector<bool>& wanted,
                  const at::Tensor& by_result) {
  Tensors all(wanted.size());
  if (!called.result.requires_grad()) return all;
  Tensors leaves;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) leaves.push_back(called.leaves[i]);
  }
  if (leaves.empty()) return all;
  Tensors found = torch::autograd::grad({called.result}, leaves, {by_result}, false, false, true);
  size_t next = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) all[i] = std::move(found[next++]);
  }
  return all;
}

}  // namespace reprise::runtime::internal::nn
