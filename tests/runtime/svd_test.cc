// Compares derivatives of the decomposition with central differences, with equal and with zero
// singular values, in all sizes of numbers.
#include "reprise/runtime/nn/svd.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::nn {
namespace {

at::Tensor with_values(int64_t rows, int64_t columns, const std::vector<double>& values) {
  const auto orthonormal = [](int64_t n) {
    return std::get<0>(at::linalg_qr(at::randn({n, n}, at::kDouble)));
  };
  at::Tensor middle = at::zeros({rows, columns}, at::kDouble);
  middle.diagonal().copy_(at::tensor(values, at::kDouble));
  return orthonormal(rows).mm(middle).mm(orthonormal(columns));
}

at::Tensor most(const at::Tensor& x) { return x.narrow(-1, 0, 3); }

// Weights the nearest matrix of rank 3. The choice of the vectors of equal values does not
// matter.
at::Tensor weighted(const Svd& d, const at::Tensor& weights) {
  return (weights * (most(d.u) * most(d.s)).mm(most(d.v).t())).sum();
}

at::Tensor weighted(const SvdHalves& d, const at::Tensor& weights) {
  return (weights * d.left.mm(d.right.t())).sum();
}

// Returns the tangent of weighted().
at::Tensor along(const Svd& d, const Svd& tangent, const at::Tensor& weights) {
  return (weights * ((most(tangent.u) * most(d.s)).mm(most(d.v).t()) +
                     (most(d.u) * most(tangent.s)).mm(most(d.v).t()) +
                     (most(d.u) * most(d.s)).mm(most(tangent.v).t())))
      .sum();
}

double differences(const at::Tensor& a, const at::Tensor& change, const at::Tensor& weights) {
  const auto value = [&](double by) {
    const auto [u, s, vh] = at::linalg_svd(a + by * change, false);
    return weighted(Svd{u, s, vh.t()}, weights).item<double>();
  };
  const double by = 1e-5;
  return (value(by) - value(-by)) / (2 * by);
}

struct Case {
  const char* name;
  at::Tensor a;
  bool differ = false;  // all singular values
};

std::vector<Case> cases() {
  at::manual_seed(1);
  const at::Tensor exact = at::zeros({5, 5}, at::kDouble);  // LAPACK finds zeros, and equal values
  exact[3][1].fill_(2);
  exact[0][4].fill_(1);
  exact[2][2].fill_(-1);
  return {{"square", with_values(5, 5, {3, 2, 1.5, 0.5, 0.1}), true},
          {"tall", with_values(7, 4, {3, 2, 1.5, 0.5}), true},
          {"wide", with_values(4, 7, {3, 2, 1.5, 0.5}), true},
          {"equal", with_values(5, 5, {2, 1, 1, 0.5, 0.5})},
          {"equal and tall", with_values(6, 4, {2, 2, 2, 0})},
          {"two zeros", with_values(5, 5, {2, 1.5, 1, 0, 0})},
          {"exact zeros", exact}};
}

TEST(Svd, GradientsAreThoseOfCentralDifferences) {
  for (const Case& one : cases()) {
    const at::Tensor a = one.a.clone().requires_grad_(), weights = at::randn_like(one.a);
    const at::Tensor change = at::randn_like(one.a);
    const double expected = differences(one.a, change, weights);
    const auto gradient_along = [&](const at::Tensor& result) {
      return (torch::autograd::grad({result}, {a})[0] * change).sum().item<double>();
    };
    EXPECT_NEAR(gradient_along(weighted(svd_halves(a, 3), weights)), expected, 1e-7) << one.name;
    const double whole = gradient_along(weighted(safe_svd(a), weights));
    const Svd d = safe_svd(one.a), tangent = svd_tangent(d, change, 3);
    EXPECT_EQ(tangent.u.size(1), 3);
    if (one.differ) {
      EXPECT_NEAR(whole, expected, 1e-7) << one.name;
      EXPECT_NEAR(along(d, tangent, weights).item<double>(), expected, 1e-7) << one.name;
      EXPECT_NEAR(along(d, svd_tangent(d, change), weights).item<double>(), expected, 1e-7);
    } else {
      EXPECT_TRUE(std::isfinite(whole)) << one.name;
    }
  }
}

// Vectors and values by themselves, where they are unique up to signs.
TEST(Svd, ForwardModeIsTheTransposedReverseMode) {
  for (const Case& one : cases()) {
    const at::Tensor a = one.a.clone().requires_grad_(), change = at::randn_like(one.a);
    const Svd d = safe_svd(a), tangent = svd_tangent(safe_svd(one.a), change);
    const at::Tensor gu = at::randn_like(d.u), gs = at::randn_like(d.s), gv = at::randn_like(d.v);
    const at::Tensor gradient = torch::autograd::grad({d.u, d.s, d.v}, {a}, {gu, gs, gv})[0];
    const double reverse = (gradient * change).sum().item<double>();
    const double forward =
        ((tangent.u * gu).sum() + (tangent.s * gs).sum() + (tangent.v * gv).sum()).item<double>();
    EXPECT_NEAR(reverse, forward, 1e-9 * (1 + std::abs(forward))) << one.name;
  }
}

TEST(Svd, SecondDerivatives) {
  at::manual_seed(2);
  for (const auto& [rows, columns] : {std::pair(5, 5), std::pair(7, 4), std::pair(4, 7)}) {
    const at::Tensor base = at::randn({rows, columns}, at::kDouble), change = at::randn_like(base);
    const at::Tensor weights = at::randn_like(base);
    const auto first = [&](const at::Tensor& at_point) {  // along `change`
      const at::Tensor a = at_point.detach().clone().requires_grad_();
      const auto gradient =
          torch::autograd::grad({weighted(safe_svd(a), weights)}, {a}, {}, true, true);
      const at::Tensor slope = (gradient[0] * change).sum();
      return std::pair(slope, torch::autograd::grad({slope}, {a})[0]);
    };
    const double second = (first(base).second * change).sum().item<double>(), by = 1e-5;
    const double expected =
        (first(base + by * change).first - first(base - by * change).first).item<double>() /
        (2 * by);
    EXPECT_NEAR(second, expected, 1e-6 * (1 + std::abs(expected))) << rows << " x " << columns;

    const at::Tensor a = base.clone().requires_grad_();  // forward mode, then reverse mode
    const Svd d = safe_svd(a);
    const at::Tensor gradient =
        torch::autograd::grad({along(d, svd_tangent(d, change), weights)}, {a})[0];
    EXPECT_NEAR((gradient * change).sum().item<double>(), second, 1e-9 * (1 + std::abs(second)));
  }
}

TEST(Svd, NumbersOfAnySizeAndType) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double far = type == at::kDouble ? 1e200 : 1e25;
    for (const double scale : {1.0, far, 1 / far}) {
      at::manual_seed(3);
      const at::Tensor a =
          (with_values(6, 6, {3, 2, 1, 0.5, 0, 0}).to(type) * scale).requires_grad_();
      const at::Tensor weights = at::randn({6, 6}, at::kDouble).to(type);
      const at::Tensor gradient =
          torch::autograd::grad({weighted(svd_halves(a, 3), weights)}, {a})[0];
      const at::Tensor reference = a.detach().to(at::kDouble).div(scale).requires_grad_();
      const at::Tensor expected = torch::autograd::grad(
          {weighted(svd_halves(reference, 3), weights.to(at::kDouble))}, {reference})[0];
      const double error = (gradient.to(at::kDouble) - expected).abs().max().item<double>();
      EXPECT_LT(error, type == at::kDouble ? 1e-12 : 1e-4) << scale;
    }
    const at::Tensor nothing = at::zeros({4, 4}, type).requires_grad_();
    const SvdHalves d = svd_halves(nothing, 2);
    const at::Tensor gradient = torch::autograd::grad({d.left.sum() + d.right.sum()}, {nothing})[0];
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  }
}

TEST(Svd, TheSameBitsAgain) {
  at::manual_seed(4);
  const at::Tensor a = at::randn({64, 64}, at::kDouble);
  const SvdHalves first = svd_halves(a, 8), second = svd_halves(a.clone(), 8);
  EXPECT_TRUE(at::equal(first.left, second.left) && at::equal(first.right, second.right));
}

TEST(Svd, WhatIsRefused) {
  const at::Tensor a = at::randn({3, 4}, at::kDouble);
  EXPECT_THROW(safe_svd(at::Tensor()), InputError);
  EXPECT_THROW(safe_svd(at::randn({2, 3, 4})), InputError);
  EXPECT_THROW(safe_svd(at::zeros({0, 4})), InputError);
  EXPECT_THROW(safe_svd(at::ones({2, 2}, at::kLong)), InputError);
  EXPECT_THROW(safe_svd(at::ones({2, 2}, at::kHalf)), InputError);
  EXPECT_THROW(svd_halves(at::Tensor(), 1), InputError);
  EXPECT_THROW(svd_halves(a, 0), InputError);
  EXPECT_THROW(safe_svd(at::full({3, 3}, std::numeric_limits<double>::quiet_NaN())), InputError);
  EXPECT_THROW(svd_tangent(safe_svd(a), at::randn({4, 3}, at::kDouble)), InputError);
  EXPECT_THROW(svd_tangent(safe_svd(a), at::Tensor()), InputError);
  EXPECT_THROW(svd_tangent(safe_svd(a), a, 0), InputError);
  const at::Tensor x = a.clone().requires_grad_();
  EXPECT_THROW(torch::autograd::grad({svd_halves(x, 2).left.sum()}, {x}, {}, true, true),
               InputError);
}

}  // namespace
}  // namespace reprise::runtime::nn
