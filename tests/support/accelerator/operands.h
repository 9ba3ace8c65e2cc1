// These are tensors of a device as tensors of the host, for the time of one call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "order_check.h"

namespace sim {

inline constexpr auto kDeviceType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::PrivateUse1);
inline constexpr c10::DispatchKeySet kHostKeys(c10::DispatchKey::CPU);

inline bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

// Returns the address where kernels find the first element. A tensor of the host has its own address
// there, or the open address of pinned memory.
char* kernel_address(const at::Tensor& tensor);

// Adds the bytes that the tensor's elements take, in as few ranges as possible. A tensor in more than
// kMostRanges pieces adds none, so that the check misses it and does not report falsely.
inline constexpr size_t kMostRanges = 4096;
void add_accesses(const at::Tensor& tensor, bool writes, std::vector<Access>& accesses);

// Calls `use` with each tensor in the value.
template <class Use>
void each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) use(each);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      if (each) use(*each);
    }
  }
}

// The operands of one call of a kernel. Tensors that share a storage still do on the host, and a
// tensor that is given twice is one tensor.
class Operands {
 public:
  // Tensors, lists of tensors, devices and generators of a device change; other values do not.
  // Throws c10::Error if operands lie on several devices.
  c10::IValue to_host(const c10::IValue& value);
  at::Tensor to_host(const at::Tensor& tensor);

  // After the kernel: operands that it resized or gave other memory are so on the device, too.
  void update();

  // Returns a result: the operand itself, a view of one, or a new tensor that takes the result's
  // memory. Throws c10::Error if the result has no plain storage.
  c10::IValue to_device(const c10::IValue& value);
  at::Tensor to_device(const at::Tensor& result);

  const std::optional<c10::Device>& device() const { return device_; }

 private:
  struct Shared {  // a storage of the device and its twin on the host
    c10::Storage device, host;
    const void* host_data = nullptr;  // when the call began
    bool operand = false;
  };
  const Shared& twin(const c10::Storage& storage);
  c10::DataPtr take_over(const c10::Storage& host);

  std::optional<c10::Device> device_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> hosts_;    // by tensor of the device
  std::unordered_map<const c10::TensorImpl*, at::Tensor> devices_;  // by tensor of the host
  std::vector<Shared> storages_;
};

uint64_t adopted_results();
uint64_t copied_results();

}  // namespace sim
