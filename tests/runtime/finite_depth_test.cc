// Compares machines of finite depth with concatenations, in float64.
#include "reprise/runtime/nn/finite_depth.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::runtime::nn {
namespace {

at::Tensor plain_activation(const std::string& name, const at::Tensor& y) {
  if (name == "relu") return y.relu();
  if (name == "leaky-relu") return at::leaky_relu(y, 0.01);
  if (name == "tanh") return y.tanh();
  return name == "sigmoid" ? y.sigmoid() : y;
}

TEST(FiniteDepth, IsANetworkWithAllShortcuts) {
  at::manual_seed(1);
  for (const std::string name : {"relu", "leaky-relu", "tanh", "sigmoid", "identity"}) {
    FiniteDepth machine(std::vector<int64_t>{5, 7, 1, 6}, name);
    machine->to(at::kDouble);
    const Tensors parameters = machine->parameters();  // weight1, bias1, weight2, ...
    const at::Tensor x = at::randn({2, 3, 5}, at::kDouble).requires_grad_();
    at::Tensor z = x;
    for (size_t i = 0; i < parameters.size(); i += 2) {
      const at::Tensor y = at::linear(z, parameters[i], parameters[i + 1]);
      z = at::cat({z, plain_activation(name, y)}, -1);
    }
    const at::Tensor found = machine(x), weights = at::randn_like(z);
    EXPECT_LT((found - z).abs().max().item<double>(), 1e-13) << name;
    Tensors wanted = parameters;
    wanted.push_back(x);
    const Tensors exact = torch::autograd::grad({z}, wanted, {weights});
    const Tensors gradients = torch::autograd::grad({found}, wanted, {weights});
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT((exact[i] - gradients[i]).abs().max().item<double>(), 1e-12) << name << " " << i;
    }
  }
}

TEST(FiniteDepth, WhatIsRefused) {
  EXPECT_THROW(FiniteDepth(std::vector<int64_t>{3}), InputError);
  EXPECT_THROW(FiniteDepth(std::vector<int64_t>{3, 0}), InputError);
  EXPECT_THROW(FiniteDepth(std::vector<int64_t>{3, 4}, "gelu"), InputError);
  FiniteDepth machine(std::vector<int64_t>{3, 4});
  EXPECT_THROW(machine(at::randn({2, 4})), InputError);
  EXPECT_THROW(machine(at::Tensor()), InputError);
  EXPECT_THROW(finite_depth(at::randn({2, 3}), {}, {}), InputError);
  const at::Tensor x = at::randn({2, 3}).requires_grad_();
  EXPECT_THROW(torch::autograd::grad({machine(x).square().sum()}, {x}, {}, true, true), InputError);
}

}  // namespace
}  // namespace reprise::runtime::nn
