// Kernels of our own for some channels of a batch norm in training, on the host and on float32 in
// rows.
//
// They compute algorithm 1 and section 3 of S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015
// (arXiv 1502.03167). Everything is rounded in the order of ATen's kernels for AVX2, so that the
// bits can be ATen's. Whether they are depends on how ATen was compiled, and batch_norm_kernel.h
// finds it out.
#pragma once

#include <cstdint>

namespace reprise::runtime::internal::rewrite {

// A ChannelShape is the layout of one channel in a tensor of samples x channels x pixels.
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

// A ChannelGradient has the gradients of weight and bias.
struct ChannelGradient {
  float weight = 0;
  float bias = 0;
};

// Returns whether this processor has AVX2 and FMA. The other functions require both.
bool has_channel_norm();

// Computes the mean, and the sum of squares around it, of `count` consecutive channels, with sums
// in float64.
void channel_statistics(const float* input, const ChannelShape& shape, int64_t count, float* mean,
                        float* squares);

// Normalises one row of a channel: output = input * alpha + beta with alpha = inverse_deviation *
// weight and beta = bias - mean * alpha. `output` may be `input`.
void normalise_row(const float* input, float* output, int64_t pixels, const ChannelNorm& norm);

// Runs the backward of one channel. With m elements in the channel,
//   grad_input = ((grad - sum(grad)/m) - (input - mean) * k) * inverse_deviation * weight,
//   k = sum((input - mean) * grad) * inverse_deviation^2 / m.
// `grad_input` may be `grad` or `input`.
ChannelGradient channel_backward(const float* grad, const float* input, float* grad_input,
                                 const ChannelShape& shape, const ChannelNorm& norm);

}  // namespace reprise::runtime::internal::rewrite
