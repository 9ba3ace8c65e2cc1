// Tests few-bit backward: tables against an exhaustive search, gradients against their formula,
// bytes that are kept.
#include "reprise/runtime/nn/few_bit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "runtime/nn/step_codes.h"

namespace reprise::runtime::nn {
namespace {

using internal::nn::StepTensors;

StepTensors tensors_of(const StepTable& table, int bits) {
  return {at::tensor(table.boundaries, at::kDouble), at::tensor(table.levels, at::kDouble), bits};
}

// Returns the squared error of the best levels between given boundaries, by a fine sum.
double error_of(const std::function<double(double)>& f, double low, double width,
                const std::vector<int>& ends) {
  constexpr int kPoints = 400;
  double total = 0;
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    double first = 0, second = 0;
    const int points = kPoints * (ends[s + 1] - ends[s]);
    for (int p = 0; p < points; ++p) {
      const double y = f(low + width * (ends[s] + (p + 0.5) / kPoints));
      first += y;
      second += y * y;
    }
    total += (second - first * first / points) * width / kPoints;
  }
  return total;
}

// Returns the least error over all choices of boundaries.
double exhaustive(const std::function<double(double)>& f, double low, double width, int cells,
                  int steps, std::vector<int>& ends) {
  if (static_cast<int>(ends.size()) == steps) {
    ends.push_back(cells);
    const double error = error_of(f, low, width, ends);
    ends.pop_back();
    return error;
  }
  double least = std::numeric_limits<double>::infinity();
  const int left = steps - static_cast<int>(ends.size());
  for (int end = ends.back() + 1; end + left <= cells; ++end) {
    ends.push_back(end);
    least = std::min(least, exhaustive(f, low, width, cells, steps, ends));
    ends.pop_back();
  }
  return least;
}

TEST(FewBitTables, AreTheBestOfAllChoices) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> number(-3, 3);
  for (int k = 0; k < 12; ++k) {
    const double a = number(random), b = number(random), c = number(random);
    const auto f = [=](double x) {
      return a * std::sin(x) + b * std::tanh(2 * x + c) + 0.1 * x * x;
    };
    const int bits = 1 + k % 2, cells = 8 + k % 5;
    const StepTable table = best_steps(f, {.bits = bits, .low = -3, .high = 2, .cells = cells});
    std::vector<int> ends{0};
    const double least = exhaustive(f, -3, 5.0 / cells, cells, 1 << bits, ends);
    EXPECT_NEAR(table.squared_error, least, 5e-4 * (1 + least)) << k;  // the integrals are sums
    ASSERT_EQ(table.boundaries.size() + 1, table.levels.size());
    EXPECT_TRUE(std::is_sorted(table.boundaries.begin(), table.boundaries.end()));
  }
}

// Integrals that an independent program computed for 2,000 cells on [-10, 10].
TEST(FewBitTables, HaveTheKnownErrors) {
  const std::vector<double> gelu = {1.410e-1, 4.056e-2, 1.190e-2, 3.142e-3, 8.35e-4};
  const std::vector<double> silu = {2.150e-1, 4.785e-2, 1.702e-2, 4.465e-3, 1.195e-3};
  for (int bits = 1; bits <= 5; ++bits) {
    const size_t k = static_cast<size_t>(bits - 1);
    EXPECT_NEAR(few_bit_table("gelu", bits).squared_error / gelu[k], 1, 1e-3) << bits;
    EXPECT_NEAR(few_bit_table("silu", bits).squared_error / silu[k], 1, 1e-3) << bits;
  }
  const StepTable& three = few_bit_table("gelu", 3);
  const std::vector<double> expected = {-2.40, -0.71, -0.33, 0, 0.33, 0.71, 2.40};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(three.boundaries[i], expected[i], 0.0101);
  EXPECT_NEAR(three.largest_error, 0.13, 0.006);
}

class FewBit : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    before_ = at::get_num_threads();
    at::set_num_threads(GetParam());
  }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = 1;
};
INSTANTIATE_TEST_SUITE_P(Threads, FewBit, ::testing::Values(1, 2));

at::Tensor gradient_of(const std::string& name, const at::Tensor& x, int bits,
                       const at::Tensor& by) {
  const at::Tensor leaf = x.detach().requires_grad_();
  return torch::autograd::grad({few_bit(name, leaf, bits)}, {leaf}, {by})[0];
}

// Everything that numbers can be: boundaries themselves and what lies beside them, infinities, NaN.
at::Tensor numbers(int64_t count, const StepTable& table, at::ScalarType type) {
  std::vector<double> special = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e30, 1e-40};
  for (const double boundary : table.boundaries) {
    const auto near = static_cast<float>(boundary);
    special.insert(special.end(),
                   {boundary, near, std::nextafter(near, -100.f), std::nextafter(near, 100.f)});
  }
  const at::Tensor x = 3 * at::randn({count}, at::kDouble);
  const int64_t some = std::min<int64_t>(count, static_cast<int64_t>(special.size()));
  x.narrow(0, count - some, some).copy_(at::tensor(special, at::kDouble).narrow(0, 0, some));
  return x.to(type);
}

TEST_P(FewBit, GradientsAreLevelsTimesGradients) {
  at::manual_seed(1);
  for (const FewBitActivation& one : few_bit_activations()) {
    for (int bits = 1; bits <= 5; ++bits) {
      if (one.bits != 0 && bits != one.bits) continue;
      const StepTable& table = few_bit_table(one.name, bits);
      for (const int64_t count : {1, 8, 300, 40'003}) {
        for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
          SCOPED_TRACE(one.name + " " + std::to_string(bits) + " " + std::to_string(count));
          const at::Tensor x = numbers(count, table, type), by = at::randn({count}).to(type);
          const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
          const StepTensors all = tensors_of(table, bits);
          const at::Tensor step = at::bucketize(x.to(wide), all.boundaries.to(wide),
                                                /*out_int32=*/false, /*right=*/true);
          const at::Tensor expected =
              (all.levels.to(wide).index_select(0, step) * by.to(wide)).to(type);
          EXPECT_TRUE(at::equal(gradient_of(one.name, x, bits, by), expected));
          const at::Tensor codes = internal::nn::step_codes(x, all);
          EXPECT_TRUE(at::equal(codes, internal::nn::step_codes_by_operations(x, all)));
          EXPECT_TRUE(
              at::equal(internal::nn::times_levels_by_operations(by, codes, all), expected));
        }
      }
    }
  }
}

TEST_P(FewBit, TheErrorIsWithinTheBoundOfTheTable) {
  at::manual_seed(2);
  const at::Tensor x = at::rand({200'000}) * 20 - 10, by = at::ones({200'000});
  for (const FewBitActivation& one : few_bit_activations()) {
    const int bits = one.bits != 0 ? one.bits : 3;
    const at::Tensor leaf = x.to(at::kDouble).requires_grad_();
    at::Tensor result;
    {
      const at::AutoGradMode on(true);
      result = one.name == "gelu" || one.name == "regelu2"   ? at::gelu(leaf)
               : one.name == "gelu-tanh"                     ? at::gelu(leaf, "tanh")
               : one.name == "silu" || one.name == "resilu2" ? at::silu(leaf)
               : one.name == "mish"                          ? at::mish(leaf)
               : one.name == "hard-swish"                    ? at::hardswish(leaf)
               : one.name == "softplus"                      ? at::softplus(leaf)
               : one.name == "elu"                           ? at::elu(leaf)
               : one.name == "tanh"                          ? at::tanh(leaf)
                                                             : at::sigmoid(leaf);
    }
    const at::Tensor exact = torch::autograd::grad({result}, {leaf}, {by.to(at::kDouble)})[0];
    const at::Tensor apart = (gradient_of(one.name, x, bits, by).to(at::kDouble) - exact).abs();
    const StepTable& table = few_bit_table(one.name, bits);
    EXPECT_LE(apart.max().item<double>(), table.largest_error + 1e-4) << one.name;
    EXPECT_NEAR(apart.square().mean().item<double>() * 20, table.squared_error,
                0.05 * table.squared_error)
        << one.name;
    EXPECT_EQ(
        at::equal(few_bit(one.name, x, bits), result.detach().to(at::kFloat)) ||
            at::allclose(few_bit(one.name, x, bits), result.detach().to(at::kFloat), 1e-4, 1e-5),
        true)
        << one.name;
  }
}

TEST_P(FewBit, KeepsSoManyBits) {
  const int64_t elements = int64_t{1} << 20;
  for (int bits = 1; bits <= 5; ++bits) {
    few_bit_table("gelu", bits);
    const int64_t before = memory_count(c10::kCPU).live;
    at::Tensor result;
    {
      const at::Tensor x = at::randn({elements}).requires_grad_();
      result = few_bit("gelu", x * 1, bits);
    }
    // The leaf is held by the node of its gradient.
    EXPECT_EQ(memory_count(c10::kCPU).live - before, 2 * 4 * elements + bits * elements / 8)
        << bits;
  }
}

TEST_P(FewBit, AnyLayoutGetsItsGradient) {
  at::manual_seed(3);
  const StepTensors table = tensors_of(few_bit_table("silu", 4), 4);
  const at::Tensor base = at::randn({6, 10, 7, 5});
  for (const at::Tensor& x : {base.contiguous(at::MemoryFormat::ChannelsLast), base.transpose(0, 2),
                              base.slice(3, 0, 5, 2), base.select(1, 3), at::randn({0, 3})}) {
    for (const bool turned : {false, true}) {
      const at::Tensor by = turned ? at::randn_like(x).transpose(0, 1).contiguous().transpose(0, 1)
                                   : at::randn_like(x);
      const at::Tensor expected = gradient_of("silu", x.contiguous(), 4, by.contiguous());
      EXPECT_TRUE(at::equal(gradient_of("silu", x, 4, by), expected));
    }
  }
}

TEST_P(FewBit, IsCaptured) {
  at::manual_seed(4);
  const at::Tensor w = at::randn({64, 64}).requires_grad_(), x = at::randn({128, 64});
  const auto step = [&](const Tensors& in) -> Tensors {
    const at::Tensor loss = few_bit("gelu", in[0].mm(w), 3).square().mean();
    loss.backward();
    return {loss.detach()};
  };
  step({x});
  const at::Tensor expected = w.grad().clone();
  w.mutable_grad() = at::Tensor();
  CapturedStep captured = capture(step, {x});
  w.mutable_grad() = at::Tensor();
  captured.run({x});
  EXPECT_TRUE(at::equal(w.grad(), expected));
}

TEST(FewBitRefuses, WhatItCannotDo) {
  const at::Tensor x = at::randn({8}).requires_grad_();
  EXPECT_THROW(few_bit("relu", x), InputError);
  EXPECT_THROW(few_bit("gelu", x, 0), InputError);
  EXPECT_THROW(few_bit("gelu", x, 6), InputError);
  EXPECT_THROW(few_bit("regelu2", x, 3), InputError);
  EXPECT_THROW(few_bit("gelu", at::arange(8)), InputError);
  EXPECT_THROW(few_bit("gelu", at::Tensor()), InputError);
  EXPECT_THROW(best_steps({}), InputError);
  const auto root = [](double v) { return std::sqrt(v); };
  EXPECT_THROW(best_steps(root), InputError);
  EXPECT_THROW(best_steps(root, {.low = 1, .high = 1}), InputError);
  EXPECT_THROW(best_steps(root, {.bits = 5, .low = 0, .high = 1, .cells = 31}), InputError);
  const at::Tensor loss = few_bit("gelu", x).sum();
  EXPECT_THROW(torch::autograd::grad({loss}, {x}, {}, true, true), InputError);
}

}  // namespace
}  // namespace reprise::runtime::nn
