// Batch norms in training by kernels of ours (channel_norm.h), where these have ATen's bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::rewrite {

// Operands of aten::native_batch_norm, and what normalising takes beside them.
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

// Whether the kernels can do the work of a call of one of these operators: on the host, in training, float32 in rows,
// and this processor and this ATen are those whose bits they have.
bool fits_batch_norm_kernel(const step::Call& call, const step::Recording& recording);

// [mean, inverse deviation] of each channel. Advances the running statistics, if there are any.
void batch_norm_statistics(std::vector<c10::IValue>& stack);
// [output], by the mean and the inverse deviation behind the operands.
void batch_norm_normalise(std::vector<c10::IValue>& stack);

// Gradients of input (in `result`, which may be the gradient or the input), weight and bias; undefined where the mask
// says so.
std::array<at::Tensor, 3> batch_norm_backward(const std::vector<c10::IValue>& stack,
                                              const at::Tensor& result);

}  // namespace reprise::runtime::internal::rewrite
