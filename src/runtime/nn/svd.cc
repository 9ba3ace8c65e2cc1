// These are the derivatives of Liao, Liu, Wang, Xiang, arXiv 1903.09650. Their names and those
// of this file:
//
//   F_ij = 1 / (s_j - s_i), G_ij = 1 / (s_i + s_j), 0 on the diagonal      Factors, by h()
//   dA = U [(F + G) o (U^T dU - dU^T U) / 2 + (F - G) o (V^T dV - dV^T V) / 2 + diag(dS)] V^T
//        + (I - U U^T) dU S^-1 V^T + U S^-1 dV^T (I - V V^T)               pull_back()
//
// F changes its sign when i and j are swapped, and G does not. So the bracket is
// C + D^T + diag(dS):
//
//   C = ((F + G) o U^T dU + (F - G) o V^T dV) / 2,  D = ((F - G) o U^T dU + (F + G) o V^T dV) / 2
//
// C and D have as many columns as dU and dV, and svd_tangent() is the transposed linear map.
//
// Halves L = U_r S_r^(1/2) and R = V_r S_r^(1/2) serve networks that turn their legs by an
// orthogonal matrix without a change of the result: (L, R) is as good as (L O, R O). So the
// derivative may turn them, too. With P = U^T dA V, and the sum of L^T dL and R^T dR symmetric
// (derived here),
//
//   dL_ij = P_ij s_j^(1/2) / (s_i + s_j), dR_ij = P_ji s_j^(1/2) / (s_i + s_j)     i and j kept
//
// needs no F. F remains for pairs of a kept value and one that is not kept. In the formulas above
// this is F + G = 2 G and F - G = 0 for kept i and j, with dU = dL S^(1/2) and dV = dR S^(1/2).
//
// All of it is written in operators that autograd knows. Tests: tests/runtime/svd_test.cc.
#include "reprise/runtime/nn/svd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

// Sums and differences of singular values below this share of the largest one are rounding errors.
double least_share(const at::Tensor& s) { return s.scalar_type() == at::kDouble ? 1e-10 : 1e-5; }

// 1 / t, or 0 where t is a rounding error. In units of `scale` nothing overflows. A smooth h, such
// as t / (t^2 + e^2), has slopes of 1 / e^2 at 0, which spoil second derivatives.
at::Tensor h(const at::Tensor& t, const at::Tensor& scale) {
  const at::Tensor x = t / scale, zero = x.detach().abs() < least_share(t);
  return x.masked_fill(zero, 1).reciprocal().masked_fill(zero, 0) / scale;
}

// Returns the largest singular value. No derivative runs through it.
at::Tensor scale_of(const at::Tensor& s) {
  const bool is_double = s.scalar_type() == at::kDouble;
  return s.detach()[0].clamp_min(is_double ? std::numeric_limits<double>::min()
                                           : std::numeric_limits<float>::min());
}

// Factors are the first columns of F + G and of F - G.
struct Factors {
  at::Tensor plus, minus;
};

Factors factors(const at::Tensor& s, int64_t columns) {
  const at::Tensor scale = scale_of(s), column = s.unsqueeze(1);
  const at::Tensor row = s.narrow(0, 0, columns).unsqueeze(0);
  const at::Tensor f = h(row - column, scale);  // 0 on the diagonal by itself
  const at::Tensor diagonal = at::eye(s.size(0), columns, s.options()) > 0;
  const at::Tensor g = h(row + column, scale).masked_fill(diagonal, 0);
  return {f + g, f - g};
}

at::Tensor first_columns(const at::Tensor& x, int64_t columns) { return x.narrow(1, 0, columns); }

// Returns the part of `x` that lies outside the space of the columns of `q`.
at::Tensor outside(const at::Tensor& q, const at::Tensor& x) { return x - q.mm(q.t().mm(x)); }

struct Whole {
  at::Tensor u, s, v;
};

Whole decompose(const at::Tensor& a) {
  const auto [u, s, vh] = at::linalg_svd(a, false);
  return {u, s, vh.t()};
}

// dA for gradients of the first columns of U and V. `by_s` may be undefined.
at::Tensor pull_back(const Whole& d, const Factors& factor, const at::Tensor& by_u,
                     const at::Tensor& by_v, const at::Tensor& by_s) {
  const int64_t keep = by_u.size(1), all = d.s.size(0);
  at::Tensor left, right;  // dA = left V_r^T + U_r right^T
  {
    const at::Tensor uu = d.u.t().mm(by_u), vv = d.v.t().mm(by_v);
    left = d.u.mm(factor.plus * uu + factor.minus * vv) / 2;
    right = d.v.mm(factor.minus * uu + factor.plus * vv) / 2;
  }
  if (by_s.defined()) left = left + first_columns(d.u, keep) * by_s;
  const at::Tensor inverse = h(d.s, scale_of(d.s)).narrow(0, 0, keep);
  if (d.u.size(0) > all) left = left + outside(d.u, by_u * inverse);
  if (d.v.size(0) > all) right = right + outside(d.v, by_v * inverse);
  return at::addmm(left.mm(first_columns(d.v, keep).t()), first_columns(d.u, keep), right.t());
}

struct SvdNode : torch::autograd::Function<SvdNode> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& a) {
    const Whole d = decompose(a);
    context->save_for_backward({d.u, d.s, d.v});
    return {d.u, d.s, d.v};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& by) {
    const auto saved = context->get_saved_variables();
    const Whole d{saved[0], saved[1], saved[2]};
    return {pull_back(d, factors(d.s, d.s.size(0)), by[0], by[2], by[1])};
  }
};

struct HalvesNode : torch::autograd::Function<HalvesNode> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& a, int64_t keep) {
    const Whole d = decompose(a);
    context->save_for_backward({d.u, d.s, d.v});
    const at::Tensor root = d.s.narrow(0, 0, keep).sqrt();
    return {first_columns(d.u, keep) * root, first_columns(d.v, keep) * root};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& by) {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "svd_halves() has no second derivative, which was asked for with create_graph: take "
          "safe_svd() and svd_tangent()");
    }
    const auto saved = context->get_saved_variables();
    const Whole d{saved[0], saved[1], saved[2]};
    const int64_t keep = by[0].size(1);
    const at::Tensor kept = d.s.narrow(0, 0, keep), root = kept.sqrt();
    Factors factor = factors(d.s, keep);
    factor.plus.narrow(0, 0, keep)
        .copy_(2 * h(kept.unsqueeze(0) + kept.unsqueeze(1), scale_of(d.s)));
    factor.minus.narrow(0, 0, keep).zero_();
    return {pull_back(d, factor, by[0] * root, by[1] * root, {}), {}};
  }
};

void check_matrix(const char* function, const at::Tensor& a) {
  if (a.defined() && a.dim() == 2 && a.numel() > 0 &&
      (a.scalar_type() == at::kDouble || a.scalar_type() == at::kFloat)) {
    return;
  }
  throw InputError(
      c10::str(function, " takes a matrix of float or double numbers, with rows and columns, not ",
               a.defined() ? c10::str(a.scalar_type(), " of the shape ", a.sizes())
                           : std::string("an undefined tensor")));
}

int64_t checked_keep(const char* function, int64_t keep, int64_t all) {
  if (keep < 1) throw InputError(c10::str(function, " keeps at least 1 value, not ", keep));
  return std::min(keep, all);
}

template <class Node, class... Arguments>
torch::autograd::variable_list apply(const char* function, const at::Tensor& a,
                                     Arguments... arguments) {
  try {
    return Node::apply(a, arguments...);
  } catch (const c10::LinAlgError& error) {
    throw InputError(
        c10::str(function, " finds no decomposition of a matrix of the shape ", a.sizes(),
                 "; are all its numbers finite? LAPACK says: ", error.what_without_backtrace()));
  }
}

}  // namespace
}  // namespace internal::nn

namespace nn {

Svd safe_svd(const at::Tensor& a) {
  internal::nn::check_matrix("safe_svd()", a);
  const auto parts = internal::nn::apply<internal::nn::SvdNode>("safe_svd()", a);
  return {parts[0], parts[1], parts[2]};
}

Svd svd_tangent(const Svd& of, const at::Tensor& da, int64_t keep) {
  const int64_t all = of.s.size(0), rows = of.u.size(0), columns = of.v.size(0);
  if (!da.defined() || da.dim() != 2 || da.size(0) != rows || da.size(1) != columns) {
    throw InputError(c10::str("svd_tangent() takes a change of the shape of the matrix, ", rows,
                              " x ", columns,
                              da.defined() ? c10::str(", not ", da.sizes()) : std::string()));
  }
  using namespace internal::nn;
  keep = checked_keep("svd_tangent()", keep, all);
  const Factors factor = factors(of.s, keep);
  const at::Tensor by_v = da.mm(first_columns(of.v, keep));
  const at::Tensor by_u = da.t().mm(first_columns(of.u, keep));
  const at::Tensor p = of.u.t().mm(by_v), pt = of.v.t().mm(by_u);  // columns of P and of P^T
  Svd tangent{of.u.mm(factor.plus * p + factor.minus * pt) / 2, p.diagonal(),
              of.v.mm(factor.minus * p + factor.plus * pt) / 2};
  const at::Tensor inverse = h(of.s, scale_of(of.s)).narrow(0, 0, keep);
  if (rows > all) tangent.u = tangent.u + outside(of.u, by_v) * inverse;
  if (columns > all) tangent.v = tangent.v + outside(of.v, by_u) * inverse;
  return tangent;
}

SvdHalves svd_halves(const at::Tensor& a, int64_t keep) {
  internal::nn::check_matrix("svd_halves()", a);
  keep = internal::nn::checked_keep("svd_halves()", keep, std::min(a.size(0), a.size(1)));
  const auto parts = internal::nn::apply<internal::nn::HalvesNode>("svd_halves()", a, keep);
  return {parts[0], parts[1]};
}

}  // namespace nn
}  // namespace reprise::runtime
