// The bytes of tensors as the allocator counts them, and their shapes in words.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace reprise::runtime::internal::device {

// Blocks of the CPU allocator begin at multiples of this, and count as multiples of it.
inline constexpr int64_t kBlockAlignment = 64;

// What a block of so many bytes counts.
constexpr int64_t counted_bytes(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// What the distinct storages of the tensors count.
int64_t storage_bytes(const std::vector<at::Tensor>& tensors);

// The same, of those storages on the CPU that the counting allocator did not hand out.
int64_t uncounted_bytes(const std::vector<at::Tensor>& tensors);

// "Float[8, 3, 64, 64]".
std::string shape_text(const at::Tensor& tensor);

}  // namespace reprise::runtime::internal::device
