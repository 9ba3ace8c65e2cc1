// This is a limit of the CPU allocator for one run of a step.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/device/step_limits.h"

namespace reprise::runtime::internal::device {

// While a LimitScope lives, the CPU allocator has this limit beside those of other steps in flight.
// Without a number of bytes there is no limit.
class LimitScope {
 public:
  explicit LimitScope(std::optional<int64_t> bytes) : bytes_(bytes) {
    if (bytes_) limits().add(*bytes_);
  }
  ~LimitScope() {
    if (bytes_) limits().remove(*bytes_);
  }
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  std::optional<int64_t> bytes_;
};

}  // namespace reprise::runtime::internal::device
