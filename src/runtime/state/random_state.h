// The state of the default random generators, saved and restored without device memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace at {
struct CPUGeneratorImpl;
}

namespace reprise::runtime::internal::state {

// The CPU generator's and, if `device` is another one, that device's. The CPU's state is copied as a
// plain object: at::Generator::get_state() would take 5,056 bytes from the allocator that counts.
class RandomState {
 public:
  explicit RandomState(c10::Device device);  // the state now
  void restore() const;
  bool operator==(const RandomState& other) const;
  bool is_now() const;  // nothing was drawn, nothing was set since

 private:
  c10::Device device_;
  std::shared_ptr<const at::CPUGeneratorImpl> cpu_;
  at::Tensor other_;  // host memory; undefined when the device is the CPU
};

// Puts the state at its construction back when the scope ends.
class RandomScope {
 public:
  explicit RandomScope(c10::Device device) : before_(device) {}
  ~RandomScope() { before_.restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  RandomState before_;
};

}  // namespace reprise::runtime::internal::state
