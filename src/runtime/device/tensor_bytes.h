// These are functions for the bytes of tensors as the allocator counts them, and for their shapes
// in words.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace reprise::runtime::internal::device {

// Blocks of the CPU allocator begin at multiples of this number and count as multiples of it.
inline constexpr int64_t kBlockAlignment = 64;

// Returns the bytes that a block of `bytes` bytes of the CPU counts as.
constexpr int64_t counted_bytes(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Blocks of the device count as multiples of this number. On a device other than the CPU, the
// number is what a block of one byte counts as. The first call asks the device's allocator for such
// a block, and throws c10::OutOfMemoryError if there is none. During the first call no other thread
// may use the device.
int64_t granule(c10::Device device);

// Returns the bytes that a block of `bytes` bytes of the device counts as.
int64_t counted_bytes(int64_t bytes, c10::Device device);

// Returns the counted bytes of the distinct storages of the tensors.
int64_t storage_bytes(const std::vector<at::Tensor>& tensors);

// Returns the counted bytes of those distinct storages on the CPU that the counting allocator did
// not hand out.
int64_t uncounted_bytes(const std::vector<at::Tensor>& tensors);

// Returns a text such as "Float[8, 3, 64, 64]".
std::string shape_text(const at::Tensor& tensor);

}  // namespace reprise::runtime::internal::device
