#include "runtime/device/step_limits.h"

#include <algorithm>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

void Limits::add(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (active_.empty()) before_ = cpu_limit();
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
  set_cpu_limit(limit);
}

Limits& limits() {
  static auto* instance = new Limits;  // steps of static lifetime may end after main()
  return *instance;
}

}  // namespace reprise::runtime::internal::device
