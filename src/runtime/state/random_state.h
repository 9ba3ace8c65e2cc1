// Saves and restores the state of the default random generators without device memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace at {
struct CPUGeneratorImpl;
}

namespace reprise::runtime::internal::state {

// A RandomState is the state of the CPU generator and, if `device` is another device, of that
// device's generator. The CPU's state is copied as a plain object, because
// at::Generator::get_state() would take 5,056 bytes from the counting allocator.
class RandomState {
 public:
  explicit RandomState(c10::Device device);  // copies the current state
  void restore() const;
  bool operator==(const RandomState& other) const;
  bool is_now() const;  // whether nothing was drawn and nothing was set since

 private:
  c10::Device device_;
  std::shared_ptr<const at::CPUGeneratorImpl> cpu_;
  at::Tensor other_;  // host memory; undefined when the device is the CPU
};

// Puts the random state of its construction back when the scope ends.
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
