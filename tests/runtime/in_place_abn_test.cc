// Tests InPlace-ABN: results to the bit, gradients against float64 and plain training, the guard,
// what is kept.
#include "reprise/runtime/nn/in_place_abn.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "runtime/nn/abn_kernel.h"

namespace reprise::runtime::nn {
namespace {

struct AbnRun {
  at::Tensor result, running_mean, running_var;
  Tensors gradients;  // of x, weight, bias
};

at::Tensor activation(const InPlaceAbnOptions& options, const at::Tensor& y) {
  if (options.activation == AbnActivation::kLeakyRelu) return at::leaky_relu(y, options.parameter);
  if (options.activation == AbnActivation::kElu) return at::elu(y, options.parameter);
  return y;
}

struct AbnInput {
  at::Tensor x, weight, bias, gradient;

  AbnInput to(at::ScalarType type) const {
    const auto cast = [&](const at::Tensor& t) { return t.defined() ? t.to(type) : t; };
    return {x.to(type), cast(weight), cast(bias), gradient.to(type)};
  }
};

AbnRun run(const AbnInput& in, const InPlaceAbnOptions& options, bool training, bool plain) {
  const auto leaf = [](const at::Tensor& t) {
    return t.defined() ? t.detach().clone().requires_grad_() : t;
  };
  const at::Tensor x = leaf(in.x), w = leaf(in.weight), b = leaf(in.bias);
  AbnRun found;
  found.running_mean = at::linspace(-0.2, 0.3, x.size(1), x.scalar_type());
  found.running_var = at::linspace(0.5, 1.5, x.size(1), x.scalar_type());
  found.result =
      plain ? activation(options, at::batch_norm(x, w, b, found.running_mean, found.running_var,
                                                 training, options.momentum, options.eps, true))
            : in_place_abn(x, w, b, found.running_mean, found.running_var, training, options);
  Tensors leaves = {x};
  if (w.defined()) leaves.insert(leaves.end(), {w, b});
  found.gradients = torch::autograd::grad({found.result}, leaves, {in.gradient});
  found.result = found.result.detach();
  return found;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return ((x - y).abs().max() / x.abs().max().clamp_min(1e-30)).item<double>();
}

// Weights of both signs.
AbnInput some_input(const std::vector<int64_t>& sizes, at::ScalarType type) {
  const int64_t channels = sizes[1];
  const at::Tensor sign = at::randint(0, 2, {channels}, at::kDouble).mul(2).sub(1);
  const at::Tensor size = at::empty({channels}, at::kDouble).uniform_(0.5, 2);
  AbnInput in{at::randn(sizes, at::kDouble) * 2 + 0.5, sign * size,
              at::randn({channels}, at::kDouble), at::randn(sizes, at::kDouble)};
  return in.to(type);
}

const std::vector<InPlaceAbnOptions>& kinds() {
  static const std::vector<InPlaceAbnOptions> all = {
      {},
      {.parameter = 0.2},
      {.activation = AbnActivation::kElu, .parameter = 1},
      {.activation = AbnActivation::kElu, .parameter = 0.7},
      {.activation = AbnActivation::kIdentity}};
  return all;
}

TEST(InPlaceAbn, ResultsHaveTheBitsAndGradientsTheRoundingOfPlainTraining) {
  at::manual_seed(1);
  const std::vector<std::vector<int64_t>> shapes = {
      {8, 5, 7, 9}, {64, 17}, {3, 4, 33}, {4, 19, 6, 6}};
  for (const InPlaceAbnOptions& options : kinds()) {
    for (const auto& sizes : shapes) {
      for (const bool training : {true, false}) {
        for (const bool last : {false, true}) {
          if (last && sizes.size() != 4) continue;
          SCOPED_TRACE(fmt::format("activation {}, {} dimensions, training {}, channels last {}",
                                   static_cast<int>(options.activation), sizes.size(), training,
                                   last));
          AbnInput in = some_input(sizes, at::kFloat);
          if (last) in.x = in.x.contiguous(at::MemoryFormat::ChannelsLast);
          const AbnRun plain = run(in, options, training, true),
                       found = run(in, options, training, false);
          const AbnRun exact = run(in.to(at::kDouble), options, training, true);
          EXPECT_TRUE(at::equal(plain.result, found.result));
          EXPECT_TRUE(at::equal(plain.running_mean, found.running_mean));
          EXPECT_TRUE(at::equal(plain.running_var, found.running_var));
          for (size_t i = 0; i < 3; ++i) {
            const double own = distance(exact.gradients[i], plain.gradients[i]);
            EXPECT_LT(distance(exact.gradients[i], found.gradients[i]), 10 * own + 3e-6) << i;
          }
          const AbnRun wide = run(in.to(at::kDouble), options, training, false);
          for (size_t i = 0; i < 3; ++i) {
            EXPECT_LT(distance(exact.gradients[i], wide.gradients[i]), 1e-11) << i;
          }
        }
      }
    }
  }
}

TEST(InPlaceAbn, WeightsOfZeroAndLargeBiasesLoseNoAccuracy) {
  at::manual_seed(2);
  for (const InPlaceAbnOptions& options : kinds()) {
    SCOPED_TRACE(static_cast<int>(options.activation));
    AbnInput in = some_input({16, 8, 12, 12}, at::kFloat);
    in.weight[0] = 0.0;
    in.weight[1] = 1e-6;
    in.weight[2] = -1e-4;
    in.weight[3] = 1e-38;
    in.bias[3] = 0.0;
    in.weight[4] = 12.0;  // ELU comes close to -alpha
    in.bias[5] = -30.0;
    const AbnRun found = run(in, options, true, false),
                 exact = run(in.to(at::kDouble), options, true, true);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_LT(distance(exact.gradients[i], found.gradients[i]), 1e-5) << i;
    for (int64_t c = 0; c < 8; ++c) {
      const at::Tensor error =
          (exact.gradients[1][c] - found.gradients[1][c].to(at::kDouble)).abs();
      EXPECT_LT(error.item<double>(), 1e-3) << "channel " << c;  // sums of 2,304 numbers
    }
    // Without the guard they would.
    InPlaceAbnOptions careless = options;
    careless.guard = 1e30;
    const AbnRun wrong = run(in, careless, true, false);
    EXPECT_GT(distance(exact.gradients[1].slice(0, 1, 2), wrong.gradients[1].slice(0, 1, 2)), 1e-4);
  }
}

TEST(InPlaceAbn, SixteenBitsAndNoWeights) {
  at::manual_seed(3);
  for (const InPlaceAbnOptions& options : kinds()) {
    const AbnInput in = some_input({8, 6, 10, 10}, at::kBFloat16);
    const AbnRun found = run(in, options, true, false), plain = run(in, options, true, true);
    const AbnRun exact = run(in.to(at::kDouble), options, true, true);
    EXPECT_TRUE(at::equal(plain.result, found.result));
    for (size_t i = 0; i < 3; ++i) {  // plain training's own error is large
      const double own = distance(exact.gradients[i], plain.gradients[i]);
      EXPECT_LT(distance(exact.gradients[i], found.gradients[i]), 1.5 * own + 0.01) << i;
    }
    AbnInput bare = some_input({8, 6, 10}, at::kFloat);
    bare.weight = bare.bias = at::Tensor();
    EXPECT_LT(distance(run(bare.to(at::kDouble), options, true, true).gradients[0],
                       run(bare, options, true, false).gradients[0]),
              3e-6);
  }
}

TEST(InPlaceAbn, KernelsComputeWhatOperationsDo) {
  at::manual_seed(4);
  for (const InPlaceAbnOptions& options : kinds()) {
    const internal::nn::AbnInverse inverse{options.activation, options.parameter};
    for (const bool last : {false, true}) {
      at::Tensor z = activation(options, at::randn({5, 7, 6, 11}) * 3),
                 dz = at::randn({5, 7, 6, 11});
      z.view({-1})[3] = -options.parameter;  // where ELU's inverse would be infinite
      if (last) {
        z = z.contiguous(at::MemoryFormat::ChannelsLast);
        dz = dz.contiguous(at::MemoryFormat::ChannelsLast);
      }
      ASSERT_TRUE(internal::nn::has_abn_kernel(z, dz));
      const auto [y, dy] = internal::nn::abn_inverted(inverse, z, dz);
      EXPECT_TRUE(y.isfinite().all().item<bool>());
      const auto sums = internal::nn::abn_sums(inverse, z, dz);
      const std::vector<int64_t> others = {0, 2, 3};
      const at::Tensor abc = at::randn({3, 7}, at::kDouble), a = abc[0], b = abc[1], c = abc[2];
      const auto list = [](const at::Tensor& t) {
        return std::vector<double>(t.const_data_ptr<double>(),
                                   t.const_data_ptr<double>() + t.numel());
      };
      EXPECT_LT(distance(dy.to(at::kDouble).sum(others), at::tensor(sums.dy, at::kDouble)), 1e-6);
      EXPECT_LT(distance((dy * y).to(at::kDouble).sum(others), at::tensor(sums.dy_y, at::kDouble)),
                1e-6);
      const auto over = [](const at::Tensor& t) { return t.view({1, -1, 1, 1}); };
      const at::Tensor expected = over(a) * dy - over(b) * y - over(c);
      const auto found = internal::nn::abn_gradient(inverse, z, dz, {list(a), list(b), list(c)});
      const bool elu = options.activation == AbnActivation::kElu;  // another logarithm
      EXPECT_LT(distance(expected, found), elu ? 1e-4 : 1e-6);
    }
  }
}

TEST(InPlaceAbn, OnlyTheResultIsKept) {
  install_cpu_allocator();
  InPlaceAbn layer(16);
  at::Tensor x = at::randn({8, 16, 32, 32}).requires_grad_() * 1;
  const int64_t before = memory_count(at::kCPU).live;
  const at::Tensor z = layer(x);
  x.reset();
  const int64_t kept = memory_count(at::kCPU).live - before;
  EXPECT_LT(std::abs(kept), 2048);  // the result came, and the input went
  z.sum().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
}

TEST(InPlaceAbn, RunsInACapturedStepAndEvaluates) {
  at::manual_seed(5);
  InPlaceAbn layer(6);
  torch::nn::Conv2d conv(3, 6, 3);
  const at::Tensor x = at::randn({4, 3, 8, 8});
  const auto step = [&](const Tensors& in) -> Tensors {
    const at::Tensor loss = layer(conv(in[0])).square().mean();
    loss.backward();
    return {loss.detach()};
  };
  step({x});
  const at::Tensor expected = conv->weight.grad().clone();
  conv->weight.mutable_grad() = conv->bias.mutable_grad() = at::Tensor();
  layer->weight.mutable_grad() = layer->bias.mutable_grad() = at::Tensor();
  CapturedStep captured = capture(step, {x});
  conv->weight.mutable_grad() = conv->bias.mutable_grad() = at::Tensor();
  layer->weight.mutable_grad() = layer->bias.mutable_grad() = at::Tensor();
  captured.run({x});
  EXPECT_LT(distance(conv->weight.grad(), expected), 1e-5);
  EXPECT_GE(layer->num_batches_tracked.item<int64_t>(), 2);
  layer->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor y = conv(x);
  const at::Tensor normed = at::batch_norm(y, layer->weight, layer->bias, layer->running_mean,
                                           layer->running_var, false, 0.1, 1e-5, true);
  EXPECT_TRUE(at::equal(layer(y), at::leaky_relu(normed, 0.01)));
}

TEST(InPlaceAbn, WhatIsRefused) {
  const at::Tensor x = at::randn({4, 3, 5}).requires_grad_();
  const at::Tensor none;
  EXPECT_THROW(in_place_abn(at::randn({4}), none, none, none, none, true), InputError);
  EXPECT_THROW(in_place_abn(at::ones({4, 3}, at::kInt), none, none, none, none, true), InputError);
  EXPECT_THROW(in_place_abn(none, none, none, none, none, true), InputError);
  EXPECT_THROW(in_place_abn(x, none, none, none, none, false), InputError);
  EXPECT_THROW(in_place_abn(at::randn({1, 3}), none, none, none, none, true), InputError);
  EXPECT_THROW(in_place_abn(x, none, none, none, none, true, {.parameter = 0}), InputError);
  EXPECT_THROW(in_place_abn(x, none, none, none, none, true, {.parameter = -0.1}), InputError);
  const at::Tensor z = in_place_abn(x, none, none, none, none, true).square().sum();
  EXPECT_THROW(torch::autograd::grad({z}, {x}, {}, true, true), InputError);
}

}  // namespace
}  // namespace reprise::runtime::nn
