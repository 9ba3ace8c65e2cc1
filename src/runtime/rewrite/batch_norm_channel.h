// The backward of a batch norm in training, one channel after another, in place: a kernel of ours.
#pragma once

#include <cstdint>

namespace reprise::runtime {

// Where one channel of a tensor of samples x channels x pixels lies, row after row.
struct ChannelShape {
  int64_t samples = 0;
  int64_t stride = 0;  // elements from one sample to the next: channels * pixels
  int64_t pixels = 0;
};

struct ChannelNorm {
  float mean = 0;
  float inverse_deviation = 1;
  float weight = 1;
};

// Gradients of weight and bias.
struct ChannelGradient {
  float weight = 0;
  float bias = 0;
};

// Whether this processor has what the kernel is written for (AVX2 and FMA).
bool has_channel_kernel();

// Ioffe, Szegedy: Batch normalization, 2015, section 3, the derivatives; with m elements in the channel,
//   grad_input = ((grad - sum(grad)/m) - (input - mean) * k) * inverse_deviation * weight,
//   k = sum((input - mean) * grad) * inverse_deviation^2 / m.
// `grad_input` may be `grad` or `input`. Sums are taken in the order of ATen's kernel for AVX2 (eight lanes a
// sample, samples in float64), so that the bits can be its bits: whether they are depends on how ATen was built.
// Requires has_channel_kernel().
ChannelGradient batch_norm_backward(const float* grad, const float* input, float* grad_input,
                                    const ChannelShape& shape, const ChannelNorm& norm);

}  // namespace reprise::runtime
