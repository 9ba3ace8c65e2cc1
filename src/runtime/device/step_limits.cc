#include "runtime/device/step_limits.h"

#include <algorithm>
#include <map>
#include <utility>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

void Limits::add(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (active_.empty()) before_ = memory_limit(device_);
  active_.insert(bytes);
  apply();
}

void Limits::remove(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  active_.erase(active_.find(bytes));
  apply();
}

void Limits::apply() const {
  std::optional<int64_t> limit = before_;
  if (!active_.empty()) limit = std::min(*active_.begin(), before_.value_or(*active_.begin()));
  set_memory_limit(limit, device_);
}

Limits& limits(c10::Device device) {
  static std::mutex mutex;
  // Never destroyed: steps of static lifetime may end after main().
  static auto* const by_device = new std::map<std::pair<c10::DeviceType, int>, Limits>;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::pair key{device.type(), static_cast<int>(device.index())};
  return by_device->try_emplace(key, device).first->second;
}

}  // namespace reprise::runtime::internal::device
