// Tests the group-wise codec: its bound, its mean, the same by operations, and numbers that are not
// finite.
#include "runtime/nn/group_codec.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/group_codec.h"

namespace reprise::runtime::nn {
namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(GroupCodec, ErrorsAreWithinTheBoundOfEachGroup) {
  at::manual_seed(1);
  for (const int bits : {8, 4, 2}) {
    for (const int64_t group : {16, 48, 256}) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
        for (const bool stochastic : {false, true}) {
          SCOPED_TRACE(fmt::format("{} bits, group {}, {}, stochastic {}", bits, group,
                                   c10::toString(type), stochastic));
          const at::Tensor x = (at::randn({37, 53}) * at::exp(at::randn({37, 1}))).to(type);
          const GroupCodec codec{.bits = bits, .group = group, .stochastic = stochastic, .seed = 7};
          const Encoded encoded = encode(x, codec);
          const at::Tensor decoded = decode(encoded);
          EXPECT_EQ(decoded.sizes(), x.sizes());
          EXPECT_EQ(decoded.scalar_type(), type);
          EXPECT_LE(largest_difference(decoded, x), encoded.largest_error());
          EXPECT_LE(encoded.bytes(),
                    (x.numel() * bits + 7) / 8 + 8 * ((x.numel() + group - 1) / group));
          // The bound of each group, from its own numbers.
          const at::Tensor flat = x.to(at::kDouble).view({-1}),
                           back = decoded.to(at::kDouble).view({-1});
          for (int64_t first = 0; first < flat.numel(); first += group) {
            const at::Tensor some = flat.slice(0, first, first + group);
            const double range = (some.max() - some.min()).item<double>();
            const double bound = range / ((1 << bits) - 1) * (stochastic ? 1 : 0.5);
            const double unit =
                some.abs().max().item<double>() * (type == at::kBFloat16 ? 0x1p-8 : 0x1p-10);
            EXPECT_LE(largest_difference(some, back.slice(0, first, first + group)), bound + unit);
          }
          // Operations of PyTorch do the same.
          Encoded other = encoded;
          internal::nn::encode_by_operations(x, other);
          EXPECT_TRUE(at::equal(other.least, encoded.least));
          EXPECT_LE(largest_difference(other.step, encoded.step), 0);
          EXPECT_LE((other.codes != encoded.codes).sum().item<int64_t>(), 2);  // ties of rounding
          EXPECT_TRUE(at::equal(internal::nn::decode_by_operations(encoded), decoded));
        }
      }
    }
  }
}

TEST(GroupCodec, RandomRoundingIsRightInTheMean) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({4096});
  at::Tensor sum = at::zeros({4096}, at::kDouble);
  constexpr int kTimes = 400;
  double step = 0;
  for (int n = 0; n < kTimes; ++n) {
    const uint64_t seed = static_cast<uint64_t>(n) << 16 | 5;
    const Encoded encoded = encode(x, {.bits = 2, .stochastic = true, .seed = seed});
    step = encoded.step.max().item<double>();
    sum += decode(encoded);
  }
  // Each error is a number of at most a step: five deviations of the mean.
  EXPECT_LT(largest_difference(sum / kTimes, x), 5 * step / 2 / std::sqrt(kTimes));
  EXPECT_LT(std::abs((sum / kTimes - x).mean().item<double>()),
            5 * step / 2 / std::sqrt(kTimes * 4096.0));
  const auto rounded = [&](uint64_t seed) {
    return decode(encode(x, {.bits = 2, .stochastic = true, .seed = seed}));
  };
  EXPECT_TRUE(at::equal(rounded(3), rounded(3)));
  EXPECT_FALSE(at::equal(rounded(3), rounded(4)));
}

TEST(GroupCodec, SpecialGroups) {
  const at::Tensor same = at::full({300}, 0.1f);
  EXPECT_TRUE(at::equal(decode(encode(same)), same));
  at::Tensor wrong = at::randn({1024});
  wrong[300] = std::numeric_limits<float>::infinity();
  wrong[900] = std::nanf("");
  const Encoded encoded = encode(wrong);
  const at::Tensor decoded = decode(encoded);
  EXPECT_TRUE(std::isnan(encoded.largest_error()));
  EXPECT_TRUE(decoded.slice(0, 256, 512).isnan().all().item<bool>());
  EXPECT_TRUE(decoded.slice(0, 768, 1024).isnan().all().item<bool>());
  EXPECT_TRUE(decoded.slice(0, 0, 256).isfinite().all().item<bool>());
  const at::Tensor large = at::linspace(-3.4e38, 3.4e38, 256, at::kDouble).to(at::kFloat);
  EXPECT_TRUE(decode(encode(large)).isfinite().all().item<bool>());
  EXPECT_EQ(decode(encode(at::empty({0, 4}))).sizes(), at::IntArrayRef({0, 4}));
  const at::Tensor last = at::randn({2, 8, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(decode(encode(last)).strides(), last.strides());
  EXPECT_LT(largest_difference(decode(encode(last)), last), 0.03);
  const at::Tensor part = at::randn({8, 16}).slice(1, 2, 9);
  EXPECT_LT(largest_difference(decode(encode(part)), part), 0.03);
}

TEST(GroupCodec, WhatIsRefused) {
  const at::Tensor x = at::randn({8});
  EXPECT_THROW(encode(x, {.bits = 3}), InputError);
  EXPECT_THROW(encode(x, {.group = 8}), InputError);
  EXPECT_THROW(encode(x, {.group = 100}), InputError);
  EXPECT_THROW(encode(at::arange(8)), InputError);
  EXPECT_THROW(encode(at::Tensor()), InputError);
}

}  // namespace
}  // namespace reprise::runtime::nn
