// A batch norm in training on the host, some channels of it: kernels of ours, on float32 in rows.
//
// S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015 (arXiv 1502.03167), algorithm 1 and section 3. Everything is
// rounded in the order of ATen's kernels for AVX2, so that the bits can be theirs: whether they are depends on how ATen
// was compiled, and is to be asked (batch_norm_kernel.h).
#pragma once

#include <cstdint>

namespace reprise::runtime::internal::rewrite {

// How one channel lies in a tensor of samples x channels x pixels.
struct ChannelShape {
  int64_t samples = 0;
  int64_t stride = 0;  // elements from one sample to the next: channels * pixels
  int64_t pixels = 0;
};

struct ChannelNorm {
  float mean = 0;
  float inverse_deviation = 1;
  float weight = 1;
  float bias = 0;
};

// Gradients of weight and bias.
struct ChannelGradient {
  float weight = 0;
  float bias = 0;
};

// Whether this processor has what the kernels are written for (AVX2 and FMA). The others require it.
bool has_channel_norm();

// Mean, and sum of squares around it, of `count` channels, one behind the other, in float64.
void channel_statistics(const float* input, const ChannelShape& shape, int64_t count, float* mean,
                        float* squares);

// One row of a channel: output = input * alpha + beta, alpha = inverse_deviation * weight, beta = bias - mean * alpha.
// `output` may be `input`.
void normalise_row(const float* input, float* output, int64_t pixels, const ChannelNorm& norm);

// One channel. With m elements in it,
//   grad_input = ((grad - sum(grad)/m) - (input - mean) * k) * inverse_deviation * weight,
//   k = sum((input - mean) * grad) * inverse_deviation^2 / m.
// `grad_input` may be `grad` or `input`.
ChannelGradient channel_backward(const float* grad, const float* input, float* grad_input,
                                 const ChannelShape& shape, const ChannelNorm& norm);

}  // namespace reprise::runtime::internal::rewrite
