// These are random numbers of a device.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>

namespace sim {

// A generator of the CPU with a state of the device's own: the same seed gives the CPU's numbers.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex index);
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  at::Generator& on_host() { return on_host_; }  // what kernels of the CPU draw from

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  DeviceGenerator* clone_impl() const override;
  at::Generator on_host_;
};

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
at::Generator host_generator_of(const at::Generator& device_generator);

// For operators that draw without an argument for a generator: while it lives, the default generator
// of the CPU has the state of the device. One thread at a time; a draw of the CPU's own in another
// thread meanwhile takes numbers of the device.
class DrawScope {
 public:
  explicit DrawScope(int device);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  std::unique_lock<std::mutex> turn_;
  at::Generator of_device_, of_host_;
};

}  // namespace sim
