// This file has the rows of few-bit activations, and their node of autograd. steps.cc names the
// paper and its symbols.
#include "reprise/runtime/nn/few_bit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "runtime/nn/step_codes.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

using runtime::nn::FewBitActivation;
using runtime::nn::StepTable;

struct Row {
  FewBitActivation said;
  at::Tensor (*function)(const at::Tensor&);
  double (*derivative)(double);
  StepTable fixed = {};  // of rows with one number of bits
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double gelu_slope(double x) {
  const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  return std::erfc(-x / std::numbers::sqrt2) / 2 + x * density;
}

double tanh_gelu_slope(double x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(k * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

double mish_slope(double x) {
  const double t = std::tanh(std::log1p(std::exp(x)));
  return t + x * sigmoid(x) * (1 - t * t);
}

double hard_swish_slope(double x) { return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5; }

double elu_slope(double x) { return x > 0 ? 1 : std::exp(x); }

double tanh_slope(double x) { return 1 - std::tanh(x) * std::tanh(x); }

double sigmoid_slope(double x) { return sigmoid(x) * (1 - sigmoid(x)); }

at::Tensor erf_gelu(const at::Tensor& x) { return at::gelu(x); }

// Returns the derivative of a_1 relu(x - c_1) + a_2 relu(x - c_2) + a_3 relu(x - c_3), where the a
// add up to one: arXiv 2406.16282, equation 14; constants of the authors' program (LowMemoryBP).
StepTable sum_of_relus(double a1, double a2, double c1, double c2, double c3) {
  return {.boundaries = {c1, c2, c3}, .levels = {0, a1, a1 + a2, 1}};
}

// Fills in how far the levels are from the derivative on the range of the other tables.
StepTable measured(StepTable table, double (*derivative)(double)) {
  constexpr int kPoints = 200'000;
  const double width = 20.0 / kPoints;
  for (int i = 0; i < kPoints; ++i) {
    const double x = -10 + width * (i + 0.5);
    const auto step = std::upper_bound(table.boundaries.begin(), table.boundaries.end(), x);
    const double apart = derivative(x) - table.levels[step - table.boundaries.begin()];
    table.squared_error += apart * apart * width;
    table.largest_error = std::max(table.largest_error, std::abs(apart));
  }
  return table;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {{"gelu", "x / 2 * (1 + erf(x / sqrt(2)))"}, erf_gelu, gelu_slope},
      {{"gelu-tanh", "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))"},
       [](const at::Tensor& x) { return at::gelu(x, "tanh"); },
       tanh_gelu_slope},
      {{"silu", "x * sigmoid(x)"}, at::silu, silu_slope},
      {{"mish", "x * tanh(softplus(x))"}, at::mish, mish_slope},
      {{"hard-swish", "x * relu6(x + 3) / 6"}, at::hardswish, hard_swish_slope},
      {{"softplus", "log(1 + exp(x))"},
       [](const at::Tensor& x) { return at::softplus(x); },
       sigmoid},
      {{"elu", "x if x > 0, else exp(x) - 1"},
       [](const at::Tensor& x) { return at::elu(x); },
       elu_slope},
      {{"tanh", "tanh(x)"}, at::tanh, tanh_slope},
      {{"sigmoid", "1 / (1 + exp(-x))"}, at::sigmoid, sigmoid_slope},
      {{"regelu2", "GELU; steps of a sum of three ReLUs", 2},
       erf_gelu,
       gelu_slope,
       measured(sum_of_relus(-0.0492226, 1.0979632, -3.185881, -0.0011788, 3.1908326), gelu_slope)},
      {{"resilu2", "SiLU; steps of a sum of three ReLUs", 2},
       at::silu,
       silu_slope,
       measured(sum_of_relus(-0.0406036, 1.0809254, -6.305046, -0.0008685, 6.3258152),
                silu_slope)}};
  return all;
}

const Row& row_of(const std::string& name) {
  std::string names;
  for (const Row& row : rows()) {
    if (row.said.name == name) return row;
    names += (names.empty() ? "" : ", ") + row.said.name;
  }
  throw InputError(c10::str("there is no few-bit activation '", name, "': there are ", names));
}

StepTensors tensors_of(const StepTable& table, c10::Device device) {
  const auto as_tensor = [&](const std::vector<double>& numbers) {
    return at::tensor(numbers, at::TensorOptions(at::kDouble)).to(device);
  };
  const int bits = std::countr_zero(table.levels.size());
  return {as_tensor(table.boundaries), as_tensor(table.levels), bits};
}

// Keeps the numbers of steps.
struct FewBitNode : torch::autograd::Function<FewBitNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& operand,
                            const std::string& name, int64_t bits) {
    const at::Tensor x = operand.is_non_overlapping_and_dense() ? operand : operand.contiguous();
    const StepTable& table = runtime::nn::few_bit_table(name, static_cast<int>(bits));
    context->save_for_backward({step_codes(x, tensors_of(table, x.device()))});
    context->saved_data["name"] = name;
    context->saved_data["bits"] = bits;
    context->saved_data["strides"] = x.strides().vec();
    context->set_materialize_grads(false);
    return row_of(name).function(operand);
  }

  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          const std::vector<at::Tensor>& by_result) {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "a few-bit activation has no second derivative: it was asked for with "
          "create_graph=True. Use the plain activation");
    }
    if (!by_result[0].defined()) return std::vector<at::Tensor>(3);
    const std::vector<int64_t> strides = context->saved_data["strides"].toIntVector();
    at::Tensor gradient = by_result[0];
    if (gradient.strides() != at::IntArrayRef(strides)) {
      gradient = at::empty_strided(gradient.sizes(), strides, gradient.options()).copy_(gradient);
    }
    const StepTable& table =
        runtime::nn::few_bit_table(context->saved_data["name"].toStringRef(),
                                   static_cast<int>(context->saved_data["bits"].toInt()));
    const at::Tensor codes = context->get_saved_variables()[0];
    return {times_levels(gradient, codes, tensors_of(table, gradient.device())), {}, {}};
  }
};

}  // namespace
}  // namespace internal::nn

namespace nn {
namespace in = internal::nn;

const std::vector<FewBitActivation>& few_bit_activations() {
  static const std::vector<FewBitActivation> all = [] {
    std::vector<FewBitActivation> said;
    for (const in::Row& row : in::rows()) said.push_back(row.said);
    return said;
  }();
  return all;
}

const StepTable& few_bit_table(const std::string& name, int bits) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, StepTable> tables;  // a map does not move its tables
  const in::Row& row = in::row_of(name);
  if (row.said.bits != 0) {
    if (bits == row.said.bits) return row.fixed;
    throw InputError(c10::str("bits: ", name, " has ", row.said.bits, " bits, not ", bits));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = tables.find({name, bits});
  if (known != tables.end()) return known->second;
  StepTable table = best_steps(row.derivative, {.bits = bits});
  return tables.emplace(std::pair(name, bits), std::move(table)).first->second;
}

at::Tensor few_bit(const std::string& name, const at::Tensor& x, int bits) {
  few_bit_table(name, bits);
  if (!x.defined() || x.layout() != at::kStrided || !x.is_floating_point() || x.is_neg()) {
    throw InputError("a few-bit activation takes a plain dense tensor of real numbers");
  }
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return in::row_of(name).function(x);
  return in::FewBitNode::apply(x, name, static_cast<int64_t>(bits));
}

}  // namespace nn
}  // namespace reprise::runtime
