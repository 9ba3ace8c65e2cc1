#include "runtime/device/plain_tensors.h"

#include <fmt/format.h>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::device {
namespace {

bool is_of_python_class(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python);
}

// Makes the names of tensors only when a message needs one, because steps call this function.
bool all_plain(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : module.parameters(false)) {
    if (tensor.defined() && !is_plain(tensor)) return false;
  }
  for (const at::Tensor& tensor : module.buffers(false)) {
    if (tensor.defined() && !is_plain(tensor)) return false;
  }
  for (const auto& child : module.children()) {
    if (!all_plain(*child)) return false;
  }
  return true;
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  // The order matters: a tensor of a Python class may throw when it is asked for its storage.
  return !is_of_python_class(tensor) && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         tensor.has_storage() && !tensor.is_meta() && !tensor._is_zerotensor();
}

void require_plain(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined() || is_plain(tensor)) return;
  if (is_of_python_class(tensor)) {
    throw InputError(fmt::format(
        "{} is a tensor of a class written in Python (a DTensor, or another wrapper of tensors), "
        "whose memory the runtime does not see. Use plain tensors: for DTensor, the local ones "
        "(to_local()) of a model that is not distributed",
        what));
  }
  throw InputError(fmt::format(
      "{} is a tensor without memory of its own (sparse, nested, meta, or of a function transform "
      "such as torch.func.grad): {}. Dense tensors on a device are planned for",
      what, tensor.toString()));
}

void require_plain(const torch::nn::Module& module, const std::string& where) {
  if (all_plain(module)) return;
  for (const auto& item : module.named_parameters()) {
    require_plain(item.value(), fmt::format("parameter '{}'{}", item.key(), where));
  }
  for (const auto& item : module.named_buffers()) {
    require_plain(item.value(), fmt::format("buffer '{}'{}", item.key(), where));
  }
}

}  // namespace reprise::runtime::internal::device
