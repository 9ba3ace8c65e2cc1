// These are masks of one bit for each element.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace reprise::runtime::internal::state {

// Returns the bytes of a mask of so many elements.
int64_t bytes_of_bits(int64_t elements);

// The bytes of two elements: one stands for bit 0, the other for bit 1.
using StandIns = std::array<std::byte, 2 * 8>;

// Makes bit i % 8 of byte i / 8 one if element i of `from` has the bits of the stand-in for 1, else
// zero. `from` is a contiguous tensor of any type of up to eight bytes. `to` has room for all bits.
void pack_bits(const at::Tensor& from, const StandIns& values, uint8_t* to);

// Sets element i of `to`, a tensor of such a kind, to the stand-in for bit i.
void unpack_bits(const uint8_t* from, const StandIns& values, const at::Tensor& to);

}  // namespace reprise::runtime::internal::state
