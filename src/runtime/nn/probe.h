// Tries a function out: whether it is element-wise, and what else a TiledFunction must not be given.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/nn/spec.h"

namespace reprise::runtime::internal::nn {

// Throws InputError, with the number of the operand, for operands that a TiledFunction cannot take.
void check_operands(const Tensors& operands);

// Calls the function on a few numbers and returns the type of its result. With types that are new to
// the function it is tried out: on numbers that spread around zero, and on the first of the operands,
// as a whole, in pieces and in another order. These must agree up to rounding, and so must
// derivatives if any are `wanted`; a second gradient must show that the derivative is diagonal.
// Throws InputError if the function is not element-wise, draws random numbers (the random state is
// then put back), changes its operands, or uses another tensor that requires a gradient.
at::ScalarType try_out(const Spec& spec, const Tensors& operands, const std::vector<bool>& wanted);

}  // namespace reprise::runtime::internal::nn
