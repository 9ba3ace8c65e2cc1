// These are singular value decompositions whose derivatives stay finite for equal and for zero
// singular values, for networks of tensors such as the tensor renormalization group.
//
//   const auto [left, right] = rt::nn::svd_halves(a, 8);   // left right^T: the nearest of rank 8
//
// The derivative of singular vectors has the factors 1 / (s_j - s_i) and 1 / (s_j + s_i). Here a
// factor is 0 where the sum or difference is below 1e-10 of the largest value in double, and 1e-5
// of it in float. Liao, Liu, Wang and Xiang, "Differentiable Programming Tensor Networks" (arXiv
// 1903.09650), take t / (t^2 + 1e-12) for the differences. Two zero values need a rule for the
// sums, too, and second derivatives need one without steep slopes.
//
// A decomposition has the same bits each time that it runs on the same numbers with the same number
// of threads, so that it can be made again in a planned chain. All functions are for matrices of
// float or double numbers with at least one row and column. They throw InputError for others, for a
// `keep` below 1, and when LAPACK finds no decomposition, of numbers that are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace reprise::runtime::nn {

// A matrix of m x n numbers is u diag(s) v^T, with k = min(m, n).
struct Svd {
  at::Tensor u;  // m x k, with orthonormal columns
  at::Tensor s;  // k, descending, not negative
  at::Tensor v;  // n x k, with orthonormal columns
};

// `left` is u sqrt(s) and `right` is v sqrt(s), for the values that are kept.
struct SvdHalves {
  at::Tensor left;   // m x keep
  at::Tensor right;  // n x keep
};

// The halves of the matrix of rank `keep` that is nearest to `a`. They serve results that stay the
// same when `left` and `right` are turned by one orthogonal matrix, as those of networks of tensors
// do. The gradient of such a result is right for equal and for zero singular values, too, unless
// the cut separates equal ones: then there is no derivative. It costs products of k x k x keep
// numbers. Autograd keeps the whole decomposition. Derivatives of derivatives (create_graph) are
// refused.
SvdHalves svd_halves(const at::Tensor& a, int64_t keep);

// Returns the whole decomposition. Its gradient is right where all singular values differ, and
// finite everywhere. A change may have a part that mixes the vectors of equal values symmetrically.
// The gradient leaves this part out, as in the paper. Derivatives of derivatives follow the same
// rules.
Svd safe_svd(const at::Tensor& a);

// The change of the first `keep` singular values and vectors when the matrix changes in the
// direction `da`: the derivative in forward mode, with the same h. `of` is safe_svd(a), and
// gradients run through `of` and `da`. A chain whose stages carry a value and its tangent has a
// first derivative after the forward pass, and a second one after the backward pass.
Svd svd_tangent(const Svd& of, const at::Tensor& da,
                int64_t keep = std::numeric_limits<int64_t>::max());

}  // namespace reprise::runtime::nn
