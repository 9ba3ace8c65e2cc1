// A convolution, the batch norm of its result, and what follows element by element or window by window (an activation,
// max pooling), some samples at a time. A batch norm ties the samples of a batch together by four numbers a channel
// only, so that the work falls into passes over the parts:
// - statistics: the mean and the variance of the convolution's result, combined over parts as in T. Chan, G. Golub,
//   R. LeVeque, "Algorithms for computing the sample variance", The American Statistician 37 (1983), equation 2.1b;
// - forward: the convolution again, normalised by them, and what is behind it;
// - backward, twice: first the sums of dy and dy x^ over the batch (the gradients of bias and weight), then
//     dx = weight / sigma (dy - sum(dy) / m - x^ sum(dy x^) / m)
//   of S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015 (arXiv 1502.03167), section 3, and the gradients of the
//   convolution. Only its input, the statistics and the places of the pooling's maxima are kept for it.
// That a batch norm falls into two layers, which can be joined to their neighbours, is what W. Jung et al.,
// "Restructuring Batch Normalization to Accelerate CNN Training", MLSys 2019 (arXiv 1807.01702), save traffic with.
//
// Sums over the batch are sums of sums over parts: other rounding than a batch norm of the whole.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/recording.h"
#include "runtime/rewrite/convolution/convolution.h"

namespace reprise::runtime::internal::rewrite {

struct NormedConvolution {
  // What the kernels take begins with the arguments of aten::convolution.
  enum Operand : size_t {
    kScale = Convolution::kGroups + 1,  // of the batch norm
    kShift,
    // Of the statistics.
    kRunningMean,
    kRunningVariance,
    // Of forward and backward.
    kMean = kRunningMean,
    kVariance,
    // Of the backward.
    kGradient,  // of what comes out
    kPlaces,    // of the maxima, if there is pooling
  };
  // Of input, weight and bias of the convolution, and of the batch norm's weight and bias.
  enum Gradient : size_t { kOfInput, kOfWeight, kOfBias, kOfScale, kOfShift, kGradients };

  int64_t parts = 1, samples = 0;
  double momentum = 0, epsilon = 0;
  // Pooling is behind an activation.
  std::optional<step::Call> activation, pooling, pooling_backward, activation_backward;
  bool from_result = false;  // the activation's backward reads its result, not its operand
  step::Geometry result, places;   // of what comes out, and of the maxima's places
  std::array<std::optional<step::Geometry>, kGradients> gradients;  // none where nobody wants one
};

// These take their operands from the stack and leave their results there.
//
// [mean, variance] of the batch. Advances the running statistics, if there are any.
void normed_statistics(std::vector<c10::IValue>& stack, const NormedConvolution& layer);
// [what comes out, the places of the maxima if there is pooling]
void normed_forward(std::vector<c10::IValue>& stack, const NormedConvolution& layer);
// One result for each of the gradients, undefined where it is not wanted.
void normed_backward(std::vector<c10::IValue>& stack, const NormedConvolution& layer);

}  // namespace reprise::runtime::internal::rewrite
