// Runs batch norms in training with kernels of our own (channel_norm.h), where these have ATen's
// bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::rewrite {

// Operands of aten::native_batch_norm. The operands of normalising follow at the end.
struct BatchNorm {
  enum Operand : size_t {
    kInput,
    kWeight,
    kBias,
    kRunningMean,
    kRunningVariance,
    kTraining,
    kMomentum,
    kEpsilon,
    kMean,
    kInverse
  };
};

// Operands of aten::native_batch_norm_backward.
struct BatchNormBackward {
  enum Operand : size_t {
    kGradOutput,
    kInput,
    kWeight,
    kRunningMean,
    kRunningVariance,
    kMean,
    kInverse,
    kTrain,
    kEpsilon,
    kMask
  };
};

// Returns whether our kernels can do the work of a call of one of these operators. The call must
// run on the host, in training, on float32 in rows. On this processor and with this ATen, our
// kernels must have ATen's bits.
bool fits_batch_norm_kernel(const step::Call& call, const step::Recording& recording);

// Results: [mean, inverse deviation] of each channel. Advances the running statistics, if there are
// any.
void batch_norm_statistics(std::vector<c10::IValue>& stack);
// Results: [output]. The mean and the inverse deviation follow the other operands.
void batch_norm_normalise(std::vector<c10::IValue>& stack);

// Returns the gradients of input, weight and bias. A gradient is undefined where the mask says so.
// The gradient of the input lies in `result`, which may be the incoming gradient or the input.
std::array<at::Tensor, 3> batch_norm_backward(const std::vector<c10::IValue>& stack,
                                              const at::Tensor& result);

}  // namespace reprise::runtime::internal::rewrite
