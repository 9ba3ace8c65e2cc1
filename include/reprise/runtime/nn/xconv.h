// These are convolutions whose weight gradient is estimated from random projections of the input:
// XConv.
//
//   at::Tensor y = rt::nn::xconv2d(x, weight, bias, {.probes = 8});  // keeps 8 numbers a sample and channel
//
// The method is that of Louboutin et al., "XConv: Low-memory stochastic backpropagation for convolutional
// layers", arXiv 2106.06998: each entry of a weight gradient is a trace, that of the product of the
// gradient of the result, and the shifted input, over pixels. With random signs e of mean 0 and
// covariance 1 the trace of A is the mean of e^T A e (Hutchinson). So the forward pass keeps the
// products of the input with a few e, and the backward pass draws the same e again.
//
// The result, and the gradients of input and bias, are bitwise those of at::conv2d(). The gradient of the
// weight is right in the mean, and its variance falls with the number of probes: for each entry it is at
// most 2 / probes * sum over samples of |dy|^2 |x|^2, with the norms of one channel. Signs are drawn for
// each sample, on the host, from a generator of their own whose seed is one draw of the default one.
//
// It saves memory if nothing else keeps the input: behind an addition, a pooling, or an activation that
// keeps bits (few_bit.h). A convolution of 64 channels of 56 x 56 pixels keeps 0.3 % of its input.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace reprise::runtime::nn {

struct XConvOptions {
  int64_t probes = 8;
  std::array<int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
  std::optional<uint64_t> seed = {};  // of the signs; a draw of the default generator if absent

  bool operator==(const XConvOptions&) const = default;
};

// Returns the convolution of x (samples x channels x height x width). `bias` may be undefined. Throws
// InputError if an option is out of range or x has other dimensions, and for derivatives of derivatives.
// An error of the convolution itself is PyTorch's.
at::Tensor xconv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                   const XConvOptions& options = {});

}  // namespace reprise::runtime::nn
