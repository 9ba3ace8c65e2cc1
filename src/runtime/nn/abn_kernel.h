// The two passes of InPlace-ABN's backward over its result, on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "reprise/runtime/nn/in_place_abn.h"

namespace reprise::runtime::internal::nn {

struct AbnInverse {
  runtime::nn::AbnActivation activation = runtime::nn::AbnActivation::kLeakyRelu;
  double parameter = 0.01;
};

// For each channel, with y = activation^-1(z) and dy = activation'(y) * dz.
struct AbnSums {
  std::vector<double> dy, dy_y;  // sums of dy, and of dy * y
};
// dx = a * dy - b * y - c
struct AbnFactors {
  std::vector<double> a, b, c;
};

// Returns whether the functions below take these tensors: dense ones on the host, of one layout,
// whose channels (dimension 1) are rows or are next to each other.
bool has_abn_kernel(const at::Tensor& z, const at::Tensor& dz);

// Sums are made in float64, each by one thread.
AbnSums abn_sums(const AbnInverse& inverse, const at::Tensor& z, const at::Tensor& dz);
at::Tensor abn_gradient(const AbnInverse& inverse, const at::Tensor& z, const at::Tensor& dz,
                        const AbnFactors& factors);

// Computes the same by operations of PyTorch: y and dy.
std::pair<at::Tensor, at::Tensor> abn_inverted(const AbnInverse& inverse, const at::Tensor& z,
                                               const at::Tensor& dz);

}  // namespace reprise::runtime::internal::nn
