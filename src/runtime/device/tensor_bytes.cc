#include "runtime/device/tensor_bytes.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

int64_t granule(c10::Device device) {
  if (device.is_cpu()) return kBlockAlignment;
  static std::mutex mutex;
  static std::map<c10::DeviceType, int64_t> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known.find(device.type()); found != known.end()) return found->second;
  const c10::DeviceGuard guard(device);
  const BlockSourceScope own(nullptr, device);  // A source would ask for the granule.
  const int64_t before = memory_count(device).live;
  const c10::DataPtr byte = c10::getDeviceAllocator(device.type())->allocate(1);
  return known[device.type()] = std::max<int64_t>(1, memory_count(device).live - before);
}

int64_t counted_bytes(int64_t bytes, c10::Device device) {
  const int64_t unit = granule(device);
  return (bytes + unit - 1) / unit * unit;
}

int64_t storage_bytes(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
    total += counted_bytes(static_cast<int64_t>(storage.nbytes()), storage.device());
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
