// Masks of one bit an element.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace reprise::runtime::internal::state {

// Of a mask of so many elements.
int64_t bytes_of_bits(int64_t elements);

// The bytes of two elements: what stands for 0, and for 1.
using StandIns = std::array<std::byte, 2 * 8>;

// Bit i % 8 of byte i / 8 says whether element i of `from`, a contiguous tensor of any type of up to eight bytes,
// has the bits of what stands for 1. `to` has room for all of them.
void pack_bits(const at::Tensor& from, const StandIns& values, uint8_t* to);

// Element i of `to`, a tensor of such a kind, becomes the one that bit i asks for.
void unpack_bits(const uint8_t* from, const StandIns& values, const at::Tensor& to);

}  // namespace reprise::runtime::internal::state
