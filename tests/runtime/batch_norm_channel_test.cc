// The kernel for a channel of a batch norm's backward leaves the bits of ATen's, over either operand.
#include "rewrite/batch_norm_channel.h"

#include <array>
#include <limits>
#include <random>

#include "forced_alternatives.h"
#include "prepare.h"

namespace reprise::runtime::testing {
namespace {

// Zeros of both signs, subnormal and large numbers, and what is none.
constexpr std::array kSpecial{0.0F,
                              -0.0F,
                              1e-40F,
                              -1e-40F,
                              1e30F,
                              -1e30F,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
constexpr size_t kFinite = 6;

struct Case {
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

// Gradients of input, weight and bias, the first over `over` (0: the gradient, 1: the input).
Tensors by_kernel(const Case& c, size_t over, const Tensors& operands, const at::Tensor& weight,
                  const at::Tensor& mean, const at::Tensor& inverse) {
  Tensors own;
  for (const at::Tensor& operand : operands) own.push_back(operand.clone());
  const int64_t samples = c.sizes[0], channels = c.sizes[1];
  const int64_t pixels = own[0].numel() / samples / channels;
  Tensors results{own[over], at::empty({channels}), at::empty({channels})};
  for (int64_t k = 0; k < channels; ++k) {
    const auto at = [&](const at::Tensor& t) { return t.mutable_data_ptr<float>() + k * pixels; };
    const auto number = [&](const at::Tensor& t) { return t[k].item<float>(); };
    const ChannelGradient sums = batch_norm_backward(
        at(own[0]), at(own[1]), at(results[0]), {samples, channels * pixels, pixels},
        {number(mean), number(inverse), c.affine ? number(weight) : 1.0F});
    results[1][k] = sums.weight;
    results[2][k] = sums.bias;
  }
  return results;
}

class BatchNormChannel : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    if (!has_channel_kernel()) GTEST_SKIP() << "this processor has no AVX2";
    if (at::get_cpu_capability() == "DEFAULT") GTEST_SKIP() << "ATen is to do without AVX2";
  }
};

void expect_bits_of_aten(const Case& c) {
  const at::Tensor grad = numbers(c.sizes, c.special), input = numbers(c.sizes, c.special);
  const at::Tensor weight = at::randn({c.sizes[1]}), mean = at::randn({c.sizes[1]});
  const at::Tensor inverse = at::rand({c.sizes[1]}) + 0.1, none;
  const auto [of_input, of_weight, of_bias] =
      at::native_batch_norm_backward(grad, input, c.affine ? weight : none, none, none, mean,
                                     inverse, /*train=*/true, 1e-5, {true, true, true});
  for (const size_t over : {0, 1}) {
    const Tensors ours = by_kernel(c, over, {grad, input}, weight, mean, inverse);
    const std::string what =
        fmt::format("{}{}{}, over {}", fmt::join(c.sizes, "x"), c.affine ? "" : ", no weight",
                    c.special > 0 ? ", special numbers" : "", over);
    EXPECT_TRUE(bitwise_equal(ours[0], of_input)) << what;
    EXPECT_TRUE(bitwise_equal(ours[1], of_weight)) << what;
    EXPECT_TRUE(bitwise_equal(ours[2], of_bias)) << what;
  }
}

TEST_F(BatchNormChannel, HasAtensBitsForEveryRestOfAVector) {
  at::manual_seed(11);
  for (int64_t pixels = 2; pixels < 70; ++pixels) {
    for (const size_t special : {size_t{0}, kFinite, kSpecial.size()}) {
      expect_bits_of_aten({{3, 4, pixels}, true, special});
    }
  }
}

TEST_F(BatchNormChannel, HasAtensBitsForRandomShapes) {
  at::manual_seed(12);
  std::mt19937_64 random(12);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int k = 0; k < 200; ++k) {
    Case c{{between(1, 9), between(2, 20)}, between(0, 2) > 0, between(0, 2) == 0 ? kFinite : 0};
    const int64_t dimensions = between(1, 3);
    for (int64_t d = 0; d < dimensions; ++d)
      c.sizes.push_back(between(2, dimensions == 3 ? 6 : 20));
    expect_bits_of_aten(c);
  }
}

// Without it, the way over an operand copies channels, and needs room for them.
TEST_F(BatchNormChannel, IsWhatTheAlternativeRunsOn) {
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1)), nn::BatchNorm2d(32),
                       nn::ReLU(), nn::Flatten(), nn::Linear(32 * 64, 3));
  CapturedStep captured(
      [&](const Tensors& in) {
        const at::Tensor loss = model->forward(in[0]).square().mean();
        loss.backward();
        return Tensors{loss};
      },
      {at::randn({16, 3, 8, 8})}, {.measure = quick()});
  size_t ways = 0;
  for (const Op& op : captured.graph().ops) {
    for (const Variant& variant : op.variants) {
      if (!is_of(variant.name, "batch-norm-by-channels")) continue;
      ++ways;
      EXPECT_EQ(variant.workspace, Bytes(0)) << variant.name;
    }
  }
  EXPECT_GT(ways, 0U);
}

}  // namespace
}  // namespace reprise::runtime::testing
