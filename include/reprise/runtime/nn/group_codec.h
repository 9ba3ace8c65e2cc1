// Tensors in 8, 4 or 2 bits an element, with a range for each group of elements.
//
//   rt::nn::Encoded small = rt::nn::encode(x, {.bits = 8});   // 8.25 bits an element in place of 32
//   at::Tensor close = rt::nn::decode(small);                 // |close - x| <= small.largest_error()
//
// Each group of consecutive elements, in memory order, has its least number and a step; an element
// is the number of steps above the least. This codec is that of Chen et al., "ActNN: Reducing
// Training Memory Footprint via 2-Bit Activation Compressed Training", ICML 2021, arXiv 2104.14129,
// section 4.1, and of Liu et al., "GACT", ICML 2022, arXiv 2206.11357. With `stochastic` an element
// is rounded up with the probability of its distance from the lower step, so that the decoded
// number is x in the mean.
//
// It is for tensors that autograd saves: encoded after their last use in the forward pass, decoded before
// their use in the backward pass. Gradients are then approximate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise::runtime::nn {

struct GroupCodec {
  int bits = 8;         // 8, 4 or 2
  int64_t group = 256;  // elements that share a range: a multiple of 16
  bool stochastic = false;
  uint64_t seed = 0;  // of the random numbers of `stochastic`; equal seeds round equally

  bool operator==(const GroupCodec&) const = default;
};

struct Encoded {
  GroupCodec codec;
  std::vector<int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
  at::Tensor codes;        // bytes, the elements of a group from their lowest bits on
  at::Tensor least, step;  // float32, for each group

  int64_t bytes() const;
  // The largest error of an element: half a step, or a whole one if it was rounded at random, and the
  // rounding of the type itself. NaN if an element was not finite.
  double largest_error() const;
};

// Groups with an element that is not finite become NaN. Throws InputError unless x is a dense tensor of
// real numbers, and if the codec has other bits or groups than above. float64 numbers are encoded as
// float32.
Encoded encode(const at::Tensor& x, const GroupCodec& codec = {});
at::Tensor decode(const Encoded& encoded);

}  // namespace reprise::runtime::nn
