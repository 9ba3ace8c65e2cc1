// Tests sums of fixed-point numbers: against a formula of long doubles, undone to the bit, and out
// of range.
#include "runtime/nn/fixed_point.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <string>

namespace reprise::runtime::internal::nn {
namespace {

// Numbers of all sizes that fit, halves, and zeros of both signs.
at::Tensor numbers(at::ScalarType type, int64_t count, double limit) {
  const at::Tensor size =
      at::pow(2.0, at::empty({count}, at::kDouble).uniform_(-30, std::log2(limit)));
  at::Tensor x = size * at::empty({count}, at::kDouble).uniform_(-1, 1);
  const at::Tensor halves = at::arange(-8, 8, at::kDouble).add(0.5).mul(std::ldexp(1.0, -20));
  x.slice(0, 0, 16).copy_(halves);
  x[16] = 0.0;
  x[17] = -0.0;
  return x.to(type);
}

TEST(FixedPoint, SumsAreThoseOfTheFormula) {
  ASSERT_EQ(std::fegetround(), FE_TONEAREST);
  at::manual_seed(1);
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const std::string name = c10::toString(type);
    for (const at::Tensor& x : {numbers(type, 1003, 1000), numbers(type, 40'000, 1000)}) {
      const bool wide = type == at::kDouble;
      const at::Tensor q = at::randint(-(1 << 29), 1 << 29, x.sizes(), integers_for(type));
      const at::Tensor sum = q.clone(), other = q.clone();
      EXPECT_FALSE(add_fixed(sum, x, 20).defined());
      EXPECT_FALSE(add_fixed_by_operations(other, x, 20).item<bool>());
      EXPECT_TRUE(at::equal(sum, other)) << name;
      const at::Tensor exact = x.to(at::kDouble).contiguous();
      for (int64_t i = 0; i < x.numel(); ++i) {
        const auto scaled =
            static_cast<long double>(exact.const_data_ptr<double>()[i]) * 1048576.0L;
        const auto expected = q[i].item<int64_t>() + static_cast<int64_t>(std::nearbyint(scaled));
        if (i >= 100 && i % 97 != 0) continue;
        EXPECT_EQ(sum[i].item<int64_t>(), expected) << name << " " << i;
      }
      EXPECT_FALSE(add_fixed(sum, x, 20, Sign::kMinus).defined());
      EXPECT_TRUE(at::equal(sum, q)) << name;
      EXPECT_EQ(sum.scalar_type(), wide ? at::kLong : at::kInt);
    }
  }
}

TEST(FixedPoint, NumbersAreWithinHalfAUnit) {
  at::manual_seed(2);
  const at::Tensor x = at::empty({10'000}, at::kFloat).uniform_(-8, 8);
  for (const int bits : {1, 10, 20, 27}) {
    const at::Tensor q = at::zeros_like(x, x.options().dtype(at::kInt));
    EXPECT_FALSE(add_fixed(q, x, bits).defined());
    const at::Tensor error = (q.to(at::kDouble) * std::ldexp(1.0, -bits) - x).abs().max();
    EXPECT_LE(error.item<double>(), std::ldexp(1.0, -bits - 1)) << bits;
    EXPECT_TRUE(
        at::equal(from_fixed(q, at::kDouble, bits),
                  (q.to(at::kDouble) * std::ldexp(1.0, -bits)).to(at::kFloat).to(at::kDouble)));
  }
}

TEST(FixedPoint, OtherLayoutsAreFollowed) {
  const at::Tensor x = at::randn({4, 6, 5, 3});
  const at::Tensor q = at::zeros({4, 6, 5, 3}, at::kInt).contiguous(at::MemoryFormat::ChannelsLast);
  add_fixed(q, x, 20);
  EXPECT_TRUE(at::equal(q, x.mul(1048576).round().to(at::kInt)));
}

TEST(FixedPoint, NumbersOutOfRangeAreNoticedAndUndone) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float wrong : {2048.0f, -2048.0f, 1e30f, inf, -inf, std::nanf("")}) {
    for (const int64_t place : {0, 31, 999}) {
      const at::Tensor x = at::ones({1000}), q = at::zeros({1000}, at::kInt);
      x[place] = wrong;
      EXPECT_TRUE(add_fixed(q, x, 20).defined()) << wrong;
      EXPECT_TRUE(add_fixed_by_operations(q, x, 20).item<bool>()) << wrong;
    }
  }
  // Each number fits, and the sum does not; it wraps around, and back.
  for (const float sign : {1.0f, -1.0f}) {
    const at::Tensor x = at::full({100}, sign * 1500), q = at::zeros({100}, at::kInt);
    EXPECT_FALSE(add_fixed(q, x, 20).defined());
    const at::Tensor first = q.clone(), other = q.clone();
    EXPECT_TRUE(add_fixed(q, x, 20).defined());
    EXPECT_TRUE(add_fixed_by_operations(other, x, 20).item<bool>());
    EXPECT_TRUE(at::equal(q, other));
    add_fixed(q, x, 20, Sign::kMinus);
    EXPECT_TRUE(at::equal(q, first));
  }
}

}  // namespace
}  // namespace reprise::runtime::internal::nn
