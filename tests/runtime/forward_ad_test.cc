// Tests functions in tiles: bits or bounds of results and gradients, bytes that are kept, and
// refusals.
#include "reprise/runtime/nn/forward_ad.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "support/refusal.h"
#include "support/scale.h"

namespace reprise::runtime::nn {
namespace {

using reprise::testing::expect_refusal;

struct Outcome {
  at::Tensor result;
  Tensors gradients;
};

template <class Function>
Outcome outcome(const Function& function, const Tensors& inputs, const at::Tensor& by_result) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
  const at::Tensor result = function(leaves);
  return {result.detach(), torch::autograd::grad({result}, leaves, {by_result})};
}

Tensors some_of(const Tensors& all, size_t count) {
  return at::TensorList(all).slice(0, count).vec();
}

double error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs().max() / x.abs().max().clamp_min(1e-30)).item<double>();
}

// A RandomChain is a random chain of element-wise operations. All results stay within a few powers
// of ten.
class RandomChain {
 public:
  explicit RandomChain(uint64_t seed) : draw_(seed) {
    const int64_t length = number(1, 12);
    for (int64_t i = 0; i < length; ++i) steps_.push_back({number(0, 15), number(0, i)});
  }

  int64_t number(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(draw_);
  }

  // The second operand, if there is one, is read by every third operation.
  Elementwise function() const {
    return [steps = steps_](const Tensors& operands) {
      Tensors values{operands[0]};
      for (const auto& [kind, from] : steps) {
        const at::Tensor& other = operands.size() > 1 && kind % 3 == 0
                                      ? operands.at(1)
                                      : values[static_cast<size_t>(from)];
        values.push_back(apply(kind, values.back(), other));
      }
      return values.back();
    };
  }

 private:
  static at::Tensor apply(int64_t kind, const at::Tensor& x, const at::Tensor& other) {
    switch (kind) {
      case 0:
        return x * other.sigmoid();
      case 1:
        return x.tanh();
      case 2:
        return at::softplus(x);
      case 3:
        return (x + other) * 0.5;
      case 4:
        return x.sigmoid();
      case 5:
        return at::silu(x);
      case 6:
        return x - other.tanh();
      case 7:
        return (x * 0.3).erf();
      case 8:
        return at::elu(x);
      case 9:
        return x * other.cos();
      case 10:
        return at::gelu(x, "tanh");
      case 11:
        return (x * x + 1).rsqrt();
      case 12:
        return x.clamp(-1, 2) + other * 0.1;
      case 13:
        return (-x.abs()).exp();
      case 14:
        return at::leaky_relu(x, 0.1);
      default:
        return at::mish(x) / (other * other + 1);
    }
  }

  std::mt19937_64 draw_;
  std::vector<std::pair<int64_t, int64_t>> steps_;
};

class ForwardAd : public ::testing::TestWithParam<int> {
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

INSTANTIATE_TEST_SUITE_P(Threads, ForwardAd, ::testing::Values(1, 2, 3));

TEST_P(ForwardAd, ChainsOfOneShapeHaveTheBitsOfPlainOnesAndDerivativesUpToRounding) {
  const uint64_t cases = static_cast<uint64_t>(reprise::testing::test_scale(60));
  for (uint64_t seed = 0; seed < cases; ++seed) {
    RandomChain chain(seed);
    const int64_t elements =
        chain.number(1, 4) * (chain.number(0, 2) == 0 ? 65'536 : 24'001) + chain.number(0, 70);
    const at::ScalarType type = std::array{at::kFloat, at::kDouble, at::kBFloat16}[seed % 3];
    SCOPED_TRACE(fmt::format("seed {}, {} elements of {}", seed, elements, c10::toString(type)));
    at::manual_seed(seed);
    const Tensors inputs =
        some_of({at::randn({elements}).to(type), at::randn({elements}).to(type)}, 1 + seed % 2);
    const at::Tensor by_result = at::randn({elements}).to(type);
    const Elementwise function = chain.function();
    Outcome plain;
    try {
      plain = outcome(function, inputs, by_result);
    } catch (const c10::Error&) {
      continue;  // the chain does not read its second operand
    }
    const Outcome again = outcome(in_tile(function), inputs, by_result);
    const Outcome derived = outcome(forward_ad(function), inputs, by_result);
    // With fewer elements some kernels use more threads than others, and round differently there.
    const bool same_threads = GetParam() == 1 || elements >= GetParam() * at::internal::GRAIN_SIZE;
    const double unit = type == at::kFloat ? 1.2e-7 : type == at::kDouble ? 2.3e-16 : 7.9e-3;
    Tensors exact_inputs;
    for (const at::Tensor& input : inputs) exact_inputs.push_back(input.to(at::kDouble));
    const Outcome exact = outcome(function, exact_inputs, by_result.to(at::kDouble));
    if (same_threads) {
      EXPECT_TRUE(at::equal(plain.result, again.result));
      EXPECT_TRUE(at::equal(plain.result, derived.result));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(!same_threads || at::equal(plain.gradients[i], again.gradients[i]))
          << "operand " << i;
      // Long chains magnify rounding: the derivative may be as far from the exact one as plain
      // gradients are, a few times.
      const double plain_error = error(exact.gradients[i], plain.gradients[i]);
      const double bound = 3 * plain_error + 12 * unit;
      EXPECT_LT(error(exact.gradients[i], again.gradients[i]), bound) << "operand " << i;
      EXPECT_LT(error(exact.gradients[i], derived.gradients[i]), bound) << "operand " << i;
    }
  }
}

TEST_P(ForwardAd, OperandsThatAreBroadcastGetTheSumsOfTheirGradients) {
  using Shape = std::vector<int64_t>;
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{300, 999}, {999}}, {{6, 5, 49, 31}, {5, 1, 1}}, {{257, 1}, {1, 300}},
      {{70'001}, {}},      {{3, 150'001}, {150'001}},   {{2, 3, 4, 5, 1000}, {3, 1, 5, 1}}};
  for (const auto& [first, second] : shapes) {
    for (uint64_t seed = 1; seed < 20; seed += 2) {
      SCOPED_TRACE(fmt::format("{} and {} dimensions, seed {}", first.size(), second.size(), seed));
      RandomChain chain(seed);
      const Elementwise inner = chain.function();
      const Elementwise function = [&](const Tensors& x) { return inner(x) + x[0] * x.at(1); };
      const Tensors inputs{at::randn(first, at::kDouble), at::randn(second, at::kDouble)};
      const at::Tensor by_result = at::randn_like(function(inputs));
      const Outcome plain = outcome(function, inputs, by_result);
      for (const TiledFunction& tiled : {in_tile(function), forward_ad(function)}) {
        const Outcome other = outcome(tiled, inputs, by_result);
        EXPECT_LT(error(plain.result, other.result), 1e-14);
        for (size_t i = 0; i < 2; ++i) {
          ASSERT_EQ(other.gradients[i].sizes(), inputs[i].sizes());
          EXPECT_LT(error(plain.gradients[i], other.gradients[i]), 1e-12) << "operand " << i;
        }
      }
    }
  }
}

TEST_P(ForwardAd, SumsDoNotDependOnTheRun) {
  const auto function = [](const Tensors& x) { return x[0] * x.at(1).tanh(); };
  const Tensors inputs{at::randn({500, 1000}), at::randn({1000})};
  const at::Tensor by_result = at::randn({500, 1000});
  for (const TiledFunction& tiled : {in_tile(function), forward_ad(function)}) {
    const Outcome first = outcome(tiled, inputs, by_result);
    for (int n = 0; n < 5; ++n) {
      const Outcome next = outcome(tiled, inputs, by_result);
      EXPECT_TRUE(at::equal(first.gradients[1], next.gradients[1]));
    }
  }
}

TEST_P(ForwardAd, TilesOfAnySizeGiveTheSameBits) {
  const Elementwise& mish = activation("mish");
  const Tensors inputs{at::randn({300'007})};
  const at::Tensor by_result = at::randn({300'007});
  const Outcome plain = outcome(mish, inputs, by_result);
  for (const int64_t tile : {4096, 12'288, 131'072, 1'048'576}) {
    const Outcome other = outcome(in_tile(mish, {.tile = tile}), inputs, by_result);
    EXPECT_TRUE(at::equal(plain.result, other.result)) << tile;
    EXPECT_TRUE(at::equal(plain.gradients[0], other.gradients[0])) << tile;
  }
}

TEST_P(ForwardAd, WhatIsKeptIsTheDerivativeOrTheOperandAndNothingElse) {
  const int64_t elements = int64_t{1} << 20, bytes = 4 * elements;
  const at::Tensor x = at::randn({elements}).requires_grad_();
  const auto kept = [&](const TiledFunction& tiled) {
    tiled(x);  // tries the function out
    const int64_t before = memory_count(c10::kCPU).live;
    reset_peak(c10::kCPU);
    const at::Tensor result = tiled(x);
    const MemoryCount now = memory_count(c10::kCPU);
    // Tiles of 1/16 of the tensor: each thread holds a few.
    EXPECT_LT(now.peak - now.live, bytes * GetParam());
    return now.live - before - bytes;
  };
  const Elementwise& gelu = activation("gelu-tanh");
  using enum DerivativeStorage;
  EXPECT_EQ(kept(in_tile(gelu)), 0);
  EXPECT_EQ(kept(forward_ad(gelu)), bytes);
  EXPECT_EQ(kept(forward_ad(gelu, {.storage = kFloat16})), bytes / 2);
  EXPECT_EQ(kept(forward_ad(gelu, {.storage = kBFloat16})), bytes / 2);
  EXPECT_EQ(kept(forward_ad(gelu, {.storage = kScaled8})), bytes / 4 + bytes / 256);
}

TEST_P(ForwardAd, ALimitStopsACallAndLeavesNothingBehind) {
  const at::Tensor x = at::randn({1 << 20}).requires_grad_();
  const TiledFunction tiled = forward_ad(activation("swish"));
  tiled(x);
  const int64_t before = memory_count(c10::kCPU).live;
  for (const int64_t more : {1 << 20, 1 << 22, (1 << 23) + 4096}) {
    const MemoryLimitGuard limit(before + more);
    EXPECT_THROW(tiled(x), BudgetError) << more;
    EXPECT_EQ(memory_count(c10::kCPU).live, before);
  }
  EXPECT_TRUE(tiled(x).defined());
}

TEST_P(ForwardAd, AnExceptionOfTheFunctionReachesTheCaller) {
  struct Stop {};
  const TiledFunction tiled = forward_ad([](const at::Tensor& x) {
    if (x.numel() > 64) throw Stop();
    return x.exp();
  });
  EXPECT_THROW(tiled(at::randn({200'000}).requires_grad_()), Stop);
}

TEST(ForwardAdRefuses, FunctionsThatAreNotElementWise) {
  const at::Tensor x = at::randn({20, 64}).requires_grad_();
  const std::vector<ElementwiseOfOne> functions = {
      [](const at::Tensor& t) { return t.softmax(-1); },
      [](const at::Tensor& t) { return at::layer_norm(t, {t.size(-1)}); },
      [](const at::Tensor& t) { return t - t.mean(); },
      [](const at::Tensor& t) { return t.cumsum(0); },
      [](const at::Tensor& t) { return t.sum(); },
      [](const at::Tensor& t) { return t + (t.sum() - t.sum().detach()); }};
  for (const ElementwiseOfOne& function : functions) {
    expect_refusal([&] { forward_ad(function)(x); }, "not element-wise");
    expect_refusal([&] { in_tile(function)(x); }, "not element-wise");
  }
}

TEST(ForwardAdRefuses, RandomnessChangesInPlaceAndHiddenParameters) {
  const at::Tensor x = at::randn({20, 64}).requires_grad_(), copy = x.detach().clone();
  const at::Tensor beta = at::ones({}).requires_grad_();
  expect_refusal(
      [&] { forward_ad([](const at::Tensor& t) { return at::dropout(t, 0.5, true); })(x); },
      "random");
  expect_refusal([&] { forward_ad([](const at::Tensor& t) { return t.mul_(2); })(x); }, "in place");
  expect_refusal([&] { forward_ad([&](const at::Tensor& t) { return t * beta; })(x); },
                 "no operand");
  expect_refusal([&] { forward_ad([](const at::Tensor&) { return at::Tensor(); })(x); },
                 "no tensor");
  EXPECT_TRUE(at::equal(x.detach(), copy));
}

TEST(ForwardAdRefuses, OperandsAndOptions) {
  const Elementwise& swish = activation("swish");
  const TiledFunction tiled = forward_ad(swish);
  expect_refusal([&] { tiled(at::arange(8)); }, "operand 0");
  expect_refusal([&] { tiled(Tensors{}); }, "needs an operand");
  expect_refusal([&] { tiled(at::Tensor()); }, "is no tensor");
  expect_refusal([&] { tiled({at::randn(8), at::randn(8)}); }, "takes 1 operand");
  expect_refusal([&] { forward_ad(Elementwise()); }, "no element-wise function");
  expect_refusal([&] { forward_ad(ElementwiseOfOne()); }, "no element-wise function");
  expect_refusal([&] { in_tile(swish, {.tile = 1000}); }, "multiple of 4096");
  expect_refusal([&] { in_tile(swish, {.tile = -4096}); }, "multiple of 4096");
  expect_refusal([&] { activation("relu"); }, "there are gelu-erf, ");
}

TEST(ForwardAdRefuses, SecondDerivatives) {
  const at::Tensor x = at::randn({64}).requires_grad_();
  for (const TiledFunction& tiled : {forward_ad(activation("mish")), in_tile(activation("mish"))}) {
    const at::Tensor loss = tiled(x).sum();
    expect_refusal([&] { torch::autograd::grad({loss}, {x}, {}, true, true); }, "create_graph");
  }
}

TEST(ForwardAdActivations, EqualTheNativeOnes) {
  const at::Tensor x = 3 * at::randn({70'001}), value = at::randn({70'001}),
                   g = at::randn({70'001});
  const std::vector<std::pair<std::string, Elementwise>> pairs = {
      {"gelu-erf", [](const Tensors& t) { return at::gelu(t[0]); }},
      {"gelu-tanh", [](const Tensors& t) { return at::gelu(t[0], "tanh"); }},
      {"swish", [](const Tensors& t) { return at::silu(t[0]); }},
      {"mish", [](const Tensors& t) { return at::mish(t[0]); }},
      {"hard-swish", [](const Tensors& t) { return at::hardswish(t[0]); }},
      {"swiglu", [](const Tensors& t) { return at::silu(t[0]) * t.at(1); }},
      {"geglu", [](const Tensors& t) { return at::gelu(t[0]) * t.at(1); }}};
  ASSERT_EQ(pairs.size(), activations().size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [name, native] = pairs[i];
    EXPECT_EQ(activations()[i].name, name);
    const Tensors inputs = some_of({x, value}, activations()[i].operands);
    const Outcome expected = outcome(native, inputs, g);
    const Outcome found = outcome(forward_ad(activation(name)), inputs, g);
    EXPECT_LT(error(expected.result, found.result), 1e-6) << name;
    for (size_t k = 0; k < inputs.size(); ++k) {
      EXPECT_LT(error(expected.gradients[k], found.gradients[k]), 1e-6) << name;
    }
  }
}

}  // namespace
}  // namespace reprise::runtime::nn
