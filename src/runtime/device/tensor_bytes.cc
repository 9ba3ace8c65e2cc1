#include "runtime/device/tensor_bytes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

int64_t storage_bytes(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
    total += counted_bytes(static_cast<int64_t>(storage.nbytes()));
  }
  return total;
}

int64_t uncounted_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> foreign;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage() && tensor.device().is_cpu() &&
        tensor.storage().nbytes() > 0 && !cpu_allocator_owns(tensor.storage().data())) {
      foreign.push_back(tensor);
    }
  }
  return storage_bytes(foreign);
}

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("{}[{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

}  // namespace reprise::runtime::internal::device
