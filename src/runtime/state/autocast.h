// Keeps the autocast state from the start of a step for the runs of its backward pass.
#pragma once

#include <ATen/autocast_mode.h>

#include <array>

namespace reprise::runtime::internal::state {

// The autocast state of the CPU and of one other device: whether autocast is on, and to which type.
class AutocastState {
 public:
  explicit AutocastState(c10::Device device) : types_{c10::DeviceType::CPU, device.type()} {
    for (size_t i = 0; i < types_.size(); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(types_[i]);
      dtypes_[i] = at::autocast::get_autocast_dtype(types_[i]);
    }
  }
  void apply() const {
    for (size_t i = 0; i < types_.size(); ++i) {
      at::autocast::set_autocast_enabled(types_[i], enabled_[i]);
      at::autocast::set_autocast_dtype(types_[i], dtypes_[i]);
    }
  }
  bool operator==(const AutocastState&) const = default;

 private:
  std::array<c10::DeviceType, 2> types_;
  std::array<bool, 2> enabled_{};
  std::array<at::ScalarType, 2> dtypes_{};
};

// Applies a state for a scope.
class AutocastScope {
 public:
  AutocastScope(const AutocastState& state, c10::Device device) : before_(device) { state.apply(); }
  ~AutocastScope() { before_.apply(); }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

// Autocast caches the low-precision copies of weights together with the graph that made them. A
// copy made by a run that keeps nothing would cut the gradients of the next run off its weight.
class AutocastCacheOff {
 public:
  AutocastCacheOff() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastCacheOff() { at::autocast::set_autocast_cache_enabled(before_); }
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  bool before_;
};

}  // namespace reprise::runtime::internal::state
