// The tests of the simulated accelerator share this fixture.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <string>
#include <vector>

#include "accelerator/accelerator.h"

inline c10::TensorOptions on(int device = 0) {
  return c10::TensorOptions().device(sim::device(device));
}

inline c10::Stream default_stream(int device = 0) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1)
      .getDefaultStream(sim::device(device));
}
inline c10::Stream other_stream(int device = 0) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1)
      .getStreamFromGlobalPool(sim::device(device));
}

// After an event that the first stream records now, the second one goes on.
inline void order(c10::Stream first, c10::Stream second) {
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(first);
  event.block(second);
}

inline void seed(const c10::Device& device, uint64_t value) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(value);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.sizes() == y.sizes() && x.dtype() == y.dtype() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Each test begins without reports, and with both devices idle.
class SimTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int d = 0; d < 2; ++d)
      at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(d));
    sim::take_reports();
  }
  static std::string reports() {
    std::string all;
    for (const std::string& each : sim::take_reports()) all += each + "\n";
    return all;
  }
};
