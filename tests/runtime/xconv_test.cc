// Tests XConv: exact with a complete set of probes, right in the mean with signs, exact elsewhere.
#include "runtime/nn/xconv.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/xconv.h"

namespace reprise::runtime::nn {
namespace {

const std::vector<XConvOptions>& xconv_kinds() {
  static const std::vector<XConvOptions> all = {{},
                                                {.padding = {1, 1}},
                                                {.stride = {2, 1}, .padding = {2, 0}},
                                                {.padding = {2, 1}, .dilation = {2, 1}},
                                                {.stride = {2, 2}, .padding = {1, 1}, .groups = 2}};
  return all;
}

struct XConvCase {
  at::Tensor x, weight, dy, exact;
};

XConvCase some_case(const XConvOptions& options) {
  XConvCase c;
  c.x = at::randn({3, 4, 7, 6}, at::kDouble);
  c.weight = at::randn({6, 4 / options.groups, 3, 2}, at::kDouble).requires_grad_();
  const at::Tensor y = at::conv2d(c.x, c.weight, {}, options.stride, options.padding,
                                  options.dilation, options.groups);
  c.dy = at::randn_like(y);
  c.exact = torch::autograd::grad({y}, {c.weight}, {c.dy})[0];
  return c;
}

TEST(XConv, ACompleteSetOfProbesGivesTheExactGradient) {
  at::manual_seed(1);
  for (const XConvOptions& options : xconv_kinds()) {
    const XConvCase c = some_case(options);
    const int64_t pixels = 7 * 6;
    // The mean of e e^T over these probes is the identity.
    const at::Tensor basis =
        at::eye(pixels, at::kDouble).mul(std::sqrt(pixels)).view({pixels, 7, 6});
    const internal::nn::Probes probes = [&](int64_t) { return basis; };
    const at::Tensor found = internal::nn::estimated_weight_gradient(
        c.dy, internal::nn::projections(c.x, probes), probes, c.weight.sizes(), options);
    EXPECT_LT((found - c.exact).abs().max().item<double>(), 1e-12);
  }
}

TEST(XConv, SignsGiveTheGradientInTheMean) {
  at::manual_seed(2);
  for (const XConvOptions& options : xconv_kinds()) {
    const XConvCase c = some_case(options);
    constexpr int kTimes = 400;
    at::Tensor sum = at::zeros_like(c.exact), squares = at::zeros_like(c.exact);
    for (uint64_t n = 0; n < kTimes; ++n) {
      const auto probes = internal::nn::random_signs(100 * n, 2, c.x[0][0]);
      const at::Tensor found = internal::nn::estimated_weight_gradient(
          c.dy, internal::nn::projections(c.x, probes), probes, c.weight.sizes(), options);
      sum += found;
      squares += found.square();
    }
    const at::Tensor mean = sum / kTimes, deviation = (squares / kTimes - mean.square()).sqrt();
    const at::Tensor distance = (mean - c.exact).abs() / (deviation / std::sqrt(kTimes));
    EXPECT_LT(distance.detach().max().item<double>(), 5);
  }
}

TEST(XConv, OtherGradientsHaveTheBitsOfAConvolution) {
  at::manual_seed(3);
  for (XConvOptions options : xconv_kinds()) {
    options.seed = 7;
    const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
    const at::Tensor x = leaf(at::randn({2, 4, 9, 9})),
                     w = leaf(at::randn({6, 4 / options.groups, 3, 3})), b = leaf(at::randn({6}));
    const at::Tensor y =
        at::conv2d(x, w, b, options.stride, options.padding, options.dilation, options.groups);
    const at::Tensor z = xconv2d(x, w, b, options), dy = at::randn_like(y);
    EXPECT_TRUE(at::equal(y, z));
    const auto exact = torch::autograd::grad({y}, {x, w, b}, {dy});
    const auto found = torch::autograd::grad({z}, {x, w, b}, {dy});
    EXPECT_TRUE(at::equal(exact[0], found[0]));
    EXPECT_TRUE(at::equal(exact[2], found[2]));
    EXPECT_EQ(found[1].sizes(), w.sizes());
    const auto again = torch::autograd::grad({xconv2d(x, w, b, options)}, {w}, {dy});
    EXPECT_TRUE(at::equal(again[0], found[1]));  // one seed
  }
}

TEST(XConv, WhatIsRefused) {
  const at::Tensor x = at::randn({1, 2, 5, 5}).requires_grad_(),
                   w = at::randn({2, 2, 3, 3}).requires_grad_();
  EXPECT_THROW(xconv2d(x, w, {}, {.probes = 0}), InputError);
  EXPECT_THROW(xconv2d(at::randn({2, 5, 5}), w, {}), InputError);
  EXPECT_THROW(xconv2d(at::Tensor(), w, {}), InputError);
  EXPECT_THROW(torch::autograd::grad({xconv2d(x, w, {}).sum()}, {x}, {}, true, true), InputError);
  EXPECT_THROW(xconv2d(at::randn({1, 3, 5, 5}), w, {}), c10::Error);  // PyTorch's own
}

}  // namespace
}  // namespace reprise::runtime::nn
