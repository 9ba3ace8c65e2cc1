// These are sums of fixed-point numbers. Such a sum can be undone to the last bit, which a sum of
// floating-point numbers cannot.
#pragma once

#include <ATen/core/Tensor.h>

namespace reprise::runtime::internal::nn {

// Returns the type of the integers that stand for numbers of a type: 64 bits for double, else 32
// bits.
at::ScalarType integers_for(at::ScalarType numbers);

enum class Sign { kPlus, kMinus };

// Adds round(2^fraction_bits * x) to the integers q in place, or takes it away; halves are rounded to
// even. Both tensors have one shape. Integers wrap around, so that the one undoes the other in any
// case. Returns an undefined tensor if all is well. Otherwise it returns a tensor with one boolean,
// which is true if an element of x is not finite, or if a sum was out of range; on devices other
// than the CPU the boolean is always returned, so that nobody waits for the device.
at::Tensor add_fixed(const at::Tensor& q, const at::Tensor& x, int fraction_bits,
                     Sign sign = Sign::kPlus);

// Does the same by operations of PyTorch, for other devices, and for steps that are captured.
at::Tensor add_fixed_by_operations(const at::Tensor& q, const at::Tensor& x, int fraction_bits,
                                   Sign sign = Sign::kPlus);

// Returns 2^-fraction_bits * q in a type of real numbers.
at::Tensor from_fixed(const at::Tensor& q, at::ScalarType type, int fraction_bits);

}  // namespace reprise::runtime::internal::nn
