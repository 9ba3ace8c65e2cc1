// These are the numbers of steps, packed: eight elements take one byte for each bit.
#pragma once

#include <ATen/core/Tensor.h>

#include "reprise/runtime/nn/few_bit.h"

namespace reprise::runtime::internal::nn {

// A StepTensors is a table in the form in which kernels read it.
struct StepTensors {
  at::Tensor boundaries, levels;  // float64, on the device of the operand
  int bits = 0;
};

// Returns the numbers of the steps of x, which is dense; a tensor of bytes. Bit j of elements
// 8 i .. 8 i + 7, in the order of memory, is byte i * bits + j. NaN has the last step.
at::Tensor step_codes(const at::Tensor& x, const StepTensors& table);

// Returns gradient * level for each element. Both results and gradients have the layout that x had.
at::Tensor times_levels(const at::Tensor& gradient, const at::Tensor& codes,
                        const StepTensors& table);

// These functions do the same by operations of PyTorch, for any device.
at::Tensor step_codes_by_operations(const at::Tensor& x, const StepTensors& table);
at::Tensor times_levels_by_operations(const at::Tensor& gradient, const at::Tensor& codes,
                                      const StepTensors& table);

}  // namespace reprise::runtime::internal::nn
