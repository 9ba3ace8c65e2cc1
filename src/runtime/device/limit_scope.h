// This is a limit of a device's memory for one run of a step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "runtime/device/request_limit.h"
#include "runtime/device/step_limits.h"

namespace reprise::runtime::internal::device {

// While a LimitScope lives, the memory of the device has this limit beside those of other steps in
// flight. Without a number of bytes, and on a device without limits (has_limits()), there is none.
class LimitScope {
 public:
  LimitScope(std::optional<int64_t> bytes, c10::Device device) : device_(device), bytes_(bytes) {
    if (!has_limits(device)) bytes_.reset();
    if (bytes_) limits(device_).add(*bytes_);
  }
  ~LimitScope() {
    if (bytes_) limits(device_).remove(*bytes_);
  }
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  const c10::Device device_;
  std::optional<int64_t> bytes_;
};

}  // namespace reprise::runtime::internal::device
