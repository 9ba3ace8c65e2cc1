// These are activations as their papers write them. Their derivatives are autograd's.
#include <ATen/ATen.h>

#include <numbers>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/forward_ad.h"

namespace reprise::runtime::nn {
namespace {

constexpr double kCubic = 0.044715;
const double kRootOfTwoOverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;

at::Tensor gelu_of(const at::Tensor& x) {
  return 0.5 * x * (1 + (x * (std::numbers::sqrt2 / 2)).erf());
}

at::Tensor tanh_gelu_of(const at::Tensor& x) {
  return 0.5 * x * (1 + (kRootOfTwoOverPi * (x + kCubic * x.pow(3))).tanh());
}

at::Tensor swish_of(const at::Tensor& x) { return x * x.sigmoid(); }

at::Tensor mish_of(const at::Tensor& x) { return x * at::softplus(x).tanh(); }

at::Tensor hard_swish_of(const at::Tensor& x) { return x * at::hardtanh(x + 3, 0, 6) / 6; }

void expect_operands(const std::string& name, size_t expected, const Tensors& given) {
  if (given.size() == expected) return;
  throw InputError(name + " takes " + std::to_string(expected) + " operand(s), and got " +
                   std::to_string(given.size()));
}

Activation of_one(const char* name, const char* formula,
                  at::Tensor (*function)(const at::Tensor&)) {
  return {name, formula, 1, [name, function](const Tensors& operands) {
            expect_operands(name, 1, operands);
            return function(operands[0]);
          }};
}

// Returns an activation of the gate, times the value.
Activation gated(const char* name, const char* formula, at::Tensor (*function)(const at::Tensor&)) {
  return {name, formula, 2, [name, function](const Tensors& operands) {
            expect_operands(name, 2, operands);
            return function(operands[0]) * operands[1];
          }};
}

}  // namespace

const std::vector<Activation>& activations() {
  static const std::vector<Activation> all = {
      of_one("gelu-erf", "x / 2 * (1 + erf(x / sqrt(2)))", gelu_of),
      of_one("gelu-tanh", "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))", tanh_gelu_of),
      of_one("swish", "x * sigmoid(x)", swish_of),
      of_one("mish", "x * tanh(log(1 + exp(x)))", mish_of),
      of_one("hard-swish", "x * min(max(x + 3, 0), 6) / 6", hard_swish_of),
      gated("swiglu", "swish(gate) * value", swish_of),
      gated("geglu", "gelu(gate) * value, the gelu with erf", gelu_of),
  };
  return all;
}

const Elementwise& activation(const std::string& name) {
  std::string names;
  for (const Activation& one : activations()) {
    if (one.name == name) return one.function;
    names += (names.empty() ? "" : ", ") + one.name;
  }
  throw InputError("there is no activation \"" + name + "\"; there are " + names);
}

}  // namespace reprise::runtime::nn
