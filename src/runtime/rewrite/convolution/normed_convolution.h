// Runs a convolution, the batch norm of its result, and what follows (an activation, max pooling)
// some samples at a time. A batch norm ties the samples of a batch together by only four numbers
// per channel. So the work falls into passes over the parts:
// - Statistics: the mean and the variance of the convolution's result. They are combined over the
//   parts as in T. Chan, G. Golub, R. LeVeque, "Algorithms for computing the sample variance", The
//   American Statistician 37 (1983), equation 2.1b.
// - Forward: the convolution once more, normalised by the statistics, and what follows.
// - Backward, in two passes. The first computes the sums of dy and dy x^ over the batch, which are
//   the gradients of bias and weight. The second computes
//     dx = weight / sigma (dy - sum(dy) / m - x^ sum(dy x^) / m)
//   of S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015 (arXiv 1502.03167), section 3, and
//   the gradients of the convolution.
// For the backward only the convolution's input, the statistics and the places of the pooling's
// maxima are kept. W. Jung et al., "Restructuring Batch Normalization to Accelerate CNN Training",
// MLSys 2019 (arXiv 1807.01702), split a batch norm into two layers and join these to their
// neighbours in order to save memory traffic.
//
// Sums over the batch are sums of sums over the parts, so they round differently than a batch norm
// of the whole.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/rewrite/convolution/convolution.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::rewrite {

struct NormedConvolution {
  // Operands of the kernels. The arguments of aten::convolution come first.
  enum Operand : size_t {
    kScale = Convolution::kGroups + 1,  // the batch norm's weight
    kShift,
    // Operands of normed_statistics().
    kRunningMean,
    kRunningVariance,
    // Operands of normed_forward() and normed_backward().
    kMean = kRunningMean,
    kVariance,
    // Operands of normed_backward().
    kGradient,  // the gradient of the layer's result
    kPlaces,    // the places of the maxima, if there is pooling
  };
  // Gradients of the convolution's input, weight and bias, and of the batch norm's weight and bias.
  enum Gradient : size_t { kOfInput, kOfWeight, kOfBias, kOfScale, kOfShift, kGradients };

  int64_t parts = 1, samples = 0;
  double momentum = 0, epsilon = 0;
  // Pooling comes only after an activation.
  std::optional<step::Call> activation, pooling, pooling_backward, activation_backward;
  bool from_result = false;       // the activation's backward reads its result, not its operand
  step::Geometry result, places;  // those of the layer's result and of the maxima's places
  std::array<std::optional<step::Geometry>, kGradients> gradients;  // absent: not wanted
};

// These functions take their operands from the stack and leave their results there.
//
// The results are [mean, variance] of the batch. Advances the running statistics, if there are any.
void normed_statistics(std::vector<c10::IValue>& stack, const NormedConvolution& layer);
// The results are [the layer's result, the places of the maxima if there is pooling].
void normed_forward(std::vector<c10::IValue>& stack, const NormedConvolution& layer);
// The results are the gradients, undefined where they are not wanted.
void normed_backward(std::vector<c10::IValue>& stack, const NormedConvolution& layer);

}  // namespace reprise::runtime::internal::rewrite
