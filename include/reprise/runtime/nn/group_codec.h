// Encodes tensors in 8, 4 or 2 bits an element, with a scale for each group of elements.
//
//   rt::nn::Encoded small = rt::nn::encode(x, {.bits = 8});   // 8.25 bits an element in place of 32
//   at::Tensor close = rt::nn::decode(small);                 // |close - x| <= small.largest_error()
//
// There are two codecs, for groups of consecutive elements in memory order:
//
// - CodecKind::kRange: a group has its least number and a step, and an element is the number of
//   steps above the least. Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit
//   Activation Compressed Training", ICML 2021, arXiv 2104.14129, section 4.1, and Liu et al.,
//   "GACT", ICML 2022, arXiv 2206.11357. With `stochastic` an element is rounded up with the
//   probability of its distance from the lower step, so that the decoded number is x in the mean.
// - CodecKind::kOlive: outlier-victim pairs of Guo et al., "OliVe", ISCA 2023, arXiv 2304.07493. A
//   group has a step, and an element is a whole number of steps: up to 7 with 4 bits, up to 127 with
//   8. A larger element is an outlier. It takes the bits of its neighbour, the victim, which becomes
//   zero, and is a small floating-point number itself. So one outlier does not make the steps of its
//   group coarse.
//
// They are for tensors that autograd saves: encoded after their last use in the forward pass, decoded
// before their use in the backward pass. Gradients are then approximate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise::runtime::nn {

enum class CodecKind { kRange, kOlive };

struct GroupCodec {
  int bits = 8;             // 8, 4 or 2; 8 or 4 for kOlive
  int64_t group = 256;      // elements that share a scale: a multiple of 16
  bool stochastic = false;  // for kRange
  uint64_t seed = 0;        // of the random numbers of `stochastic`; equal seeds round equally
  CodecKind kind = CodecKind::kRange;

  bool operator==(const GroupCodec&) const = default;
};

struct Encoded {
  GroupCodec codec;
  std::vector<int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
  at::Tensor codes;        // bytes, the elements of a group from their lowest bits on
  at::Tensor least, step;  // float32, for each group; kOlive has no `least`
  at::Tensor error;        // kOlive: one number, the largest error of an element

  int64_t bytes() const;
  // Returns the largest error of an element; NaN if an element was not finite. kRange: half a step,
  // or a whole one if it was rounded at random, and the rounding of the type itself. kOlive has no
  // such bound, because a victim is lost however large it is: the number is the error that encode()
  // has found.
  double largest_error() const;
};

// Groups with an element that is not finite become NaN. A group of kOlive whose elements are all below
// 1e-34 becomes zero. Throws InputError unless x is a dense tensor of real numbers, and if the codec
// has other bits or groups than above, or is stochastic and kOlive. float64 numbers are encoded as
// float32.
Encoded encode(const at::Tensor& x, const GroupCodec& codec = {});
at::Tensor decode(const Encoded& encoded);

}  // namespace reprise::runtime::nn
