// The kernels of batch norms leave the bits of ATen's: statistics, normalising, and the backward
// over either operand.
#include "runtime/rewrite/norm/channel_norm.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "forced_alternatives.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::testing {

using internal::rewrite::channel_backward;
using internal::rewrite::channel_statistics;
using internal::rewrite::ChannelGradient;
using internal::rewrite::has_channel_norm;
using internal::rewrite::normalise_row;
using internal::state::bitwise_equal;

namespace {

// These are zeros of both signs, subnormal and large numbers, and then an infinite number and a
// NaN.
constexpr std::array kSpecial{0.0F,
                              -0.0F,
                              1e-40F,
                              -1e-40F,
                              1e30F,
                              -1e30F,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
constexpr size_t kFinite = 6;

struct ChannelCase {
  std::vector<int64_t> sizes;
  bool affine = true;
  size_t special = 0;  // so many of them among the others
};

at::Tensor numbers(at::IntArrayRef sizes, size_t special) {
  at::Tensor x = at::randn(sizes) * 3 + 0.5;
  float* const data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; special > 0 && i < x.numel(); i += 7) {
    data[i] = kSpecial[static_cast<size_t>(i) % special];
  }
  return x;
}

struct ChannelParameters {
  at::Tensor weight, bias, mean, inverse;
};

// Computes mean and inverse deviation from the channel's statistics, and then the output, in place
// if that is asked for.
Tensors forward_by_kernel(const ChannelCase& c, const at::Tensor& input, const ChannelParameters& p) {
  const int64_t samples = c.sizes[0], channels = c.sizes[1];
  const int64_t pixels = input.numel() / samples / channels;
  at::Tensor mean = at::empty({channels}), squares = at::empty({channels});
  channel_statistics(input.const_data_ptr<float>(), {samples, channels * pixels, pixels}, channels,
                     mean.mutable_data_ptr<float>(), squares.mutable_data_ptr<float>());
  at::Tensor inverse = at::empty({channels}), output = input.clone();
  for (int64_t k = 0; k < channels; ++k) {
    const double variance = squares[k].item<float>() / static_cast<float>(samples * pixels);
    inverse[k] = static_cast<float>(1 / std::sqrt(variance + 1e-5));
    for (int64_t n = 0; n < samples; ++n) {
      float* const row = output.mutable_data_ptr<float>() + (n * channels + k) * pixels;
      normalise_row(
          row, row, pixels,
          {mean[k].item<float>(), inverse[k].item<float>(),
           c.affine ? p.weight[k].item<float>() : 1.0F, c.affine ? p.bias[k].item<float>() : 0.0F});
    }
  }
  return {output, mean, inverse};
}

// Returns the gradients of input, weight and bias. The first is written over `over` (0: the
// gradient, 1: the input).
Tensors backward_by_kernel(const ChannelCase& c, size_t over, const Tensors& operands,
                           const ChannelParameters& p) {
  Tensors own;
  for (const at::Tensor& operand : operands) own.push_back(operand.clone());
  const int64_t samples = c.sizes[0], channels = c.sizes[1];
  const int64_t pixels = own[0].numel() / samples / channels;
  Tensors results{own[over], at::empty({channels}), at::empty({channels})};
  for (int64_t k = 0; k < channels; ++k) {
    const auto at = [&](const at::Tensor& t) { return t.mutable_data_ptr<float>() + k * pixels; };
    const auto number = [&](const at::Tensor& t) { return t[k].item<float>(); };
    const ChannelGradient sums = channel_backward(
        at(own[0]), at(own[1]), at(results[0]), {samples, channels * pixels, pixels},
        {number(p.mean), number(p.inverse), c.affine ? number(p.weight) : 1.0F});
    results[1][k] = sums.weight;
    results[2][k] = sums.bias;
  }
  return results;
}

class ChannelNormTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    if (!has_channel_norm()) GTEST_SKIP() << "this processor has no AVX2";
    if (at::get_cpu_capability() == "DEFAULT") GTEST_SKIP() << "ATen is to do without AVX2";
  }
};

void expect_same(const Tensors& ours, const std::tuple<at::Tensor, at::Tensor, at::Tensor>& atens,
                 const std::string& what) {
  EXPECT_TRUE(bitwise_equal(ours[0], std::get<0>(atens))) << what;
  EXPECT_TRUE(bitwise_equal(ours[1], std::get<1>(atens))) << what;
  EXPECT_TRUE(bitwise_equal(ours[2], std::get<2>(atens))) << what;
}

void expect_bits_of_aten(const ChannelCase& c) {
  const at::Tensor grad = numbers(c.sizes, c.special), input = numbers(c.sizes, c.special), none;
  const ChannelParameters p{at::randn({c.sizes[1]}), at::randn({c.sizes[1]}), at::randn({c.sizes[1]}),
                     at::rand({c.sizes[1]}) + 0.1};
  const std::string what =
      fmt::format("{}{}{}", fmt::join(c.sizes, "x"), c.affine ? "" : ", no weight",
                  c.special > 0 ? ", special numbers" : "");
  expect_same(forward_by_kernel(c, input, p),
              at::native_batch_norm(input, c.affine ? p.weight : none, c.affine ? p.bias : none,
                                    none, none, /*training=*/true, 0.1, 1e-5),
              what);
  const auto backward =
      at::native_batch_norm_backward(grad, input, c.affine ? p.weight : none, none, none, p.mean,
                                     p.inverse, /*train=*/true, 1e-5, {true, true, true});
  for (const size_t over : {0, 1}) {
    expect_same(backward_by_kernel(c, over, {grad, input}, p), backward,
                fmt::format("{}, over {}", what, over));
  }
}

TEST_F(ChannelNormTest, HasAtensBitsForEveryRestOfAVector) {
  at::manual_seed(11);
  for (int64_t pixels = 2; pixels < 70; ++pixels) {
    for (const size_t special : {size_t{0}, kFinite, kSpecial.size()}) {
      expect_bits_of_aten({{3, 4, pixels}, true, special});
    }
  }
}

TEST_F(ChannelNormTest, HasAtensBitsForRandomShapes) {
  at::manual_seed(12);
  std::mt19937_64 random(12);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int k = 0; k < 200; ++k) {
    ChannelCase c{{between(1, 9), between(2, 20)}, between(0, 2) > 0, between(0, 2) == 0 ? kFinite : 0};
    const int64_t dimensions = between(1, 3);
    for (int64_t d = 0; d < dimensions; ++d)
      c.sizes.push_back(between(2, dimensions == 3 ? 6 : 20));
    expect_bits_of_aten(c);
  }
}

// Without these kernels there is no second step. The variant over an operand copies channels, for
// which it needs room.
TEST_F(ChannelNormTest, IsWhatTheAlternativesRunOn) {
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1)), nn::BatchNorm2d(32),
                       nn::ReLU(), nn::Flatten(), nn::Linear(32 * 64, 3));
  CapturedStep captured(
      [&](const Tensors& in) {
        const at::Tensor loss = model->forward(in[0]).square().mean();
        loss.backward();
        return Tensors{loss};
      },
      {at::randn({16, 3, 8, 8})}, {.measure = quick()});
  size_t ways = 0, steps = 0;
  for (const Op& op : captured.graph().ops) {
    for (const Variant& variant : op.variants) {
      if (!is_of(variant, "batch-norm-by-channels")) continue;
      ++ways;
      EXPECT_EQ(variant.workspace, Bytes(0)) << op.id;
    }
  }
  for (const Choice& choice : captured.graph().choices) {
    steps += realizations_of(choice, "two-step-batch-norm").size();
  }
  EXPECT_GT(ways, 0U);
  EXPECT_EQ(steps, 1U);
}

}  // namespace
}  // namespace reprise::runtime::testing
