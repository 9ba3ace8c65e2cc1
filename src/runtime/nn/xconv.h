// Computes the two halves of an estimated weight gradient, with signs as an argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "reprise/runtime/nn/xconv.h"

namespace reprise::runtime::internal::nn {

// Returns the probes of a sample: probes x height x width.
using Probes = std::function<at::Tensor(int64_t sample)>;

// Returns random signs. `like` has the size of one channel, and the type and device.
Probes random_signs(uint64_t seed, int64_t probes, const at::Tensor& like);

// Returns the products of the input with the probes: samples x channels x probes.
at::Tensor projections(const at::Tensor& x, const Probes& probes);

// Returns the estimate of the gradient by a weight of this shape, in float32 or float64.
at::Tensor estimated_weight_gradient(const at::Tensor& dy, const at::Tensor& projected,
                                     const Probes& probes, at::IntArrayRef weight_sizes,
                                     const runtime::nn::XConvOptions& options);

}  // namespace reprise::runtime::internal::nn
