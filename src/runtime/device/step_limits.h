// These are the limits that steps in flight set on the memory of devices.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

namespace reprise::runtime::internal::device {

// Keeps the limits of all steps in flight on a device, of all models, and the limit that was there
// before them. A budget covers all live bytes, so the smallest limit holds.
class Limits {
 public:
  explicit Limits(c10::Device device) : device_(device) {}
  void add(int64_t bytes);
  void remove(int64_t bytes);

 private:
  void apply() const;

  const c10::Device device_;
  std::mutex mutex_;
  std::multiset<int64_t> active_;
  std::optional<int64_t> before_;
};

// Returns the limits of a device that can have them (has_limits()).
Limits& limits(c10::Device device);

}  // namespace reprise::runtime::internal::device
