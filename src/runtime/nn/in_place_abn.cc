// InPlace-ABN. The names of Rota Bulo et al., arXiv 1712.02616, and of this file, for each channel of m
// elements:
//
//   x^ = (x - mu) / sqrt(sigma^2 + eps)     inverse_deviation = 1 / sqrt(sigma^2 + eps)
//   y = gamma x^ + beta, z = phi(y)         weight, bias; z is kept
//   dL/dgamma = (sum dy y - beta sum dy) / gamma                  section 3.2, InPlace-ABN II
//   dL/dx = gamma / sqrt(sigma^2 + eps) * (dy - (dL/dgamma) / (gamma m) * y
//                                          - (sum dy - beta / gamma dL/dgamma) / m)
//
// Tests: tests/runtime/in_place_abn_test.cc, tests/python/test_in_place_abn.py.
#include "reprise/runtime/nn/in_place_abn.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>
#include <vector>

#include "reprise/model/errors.h"
#include "runtime/nn/abn_kernel.h"
#include "runtime/step/record.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

using runtime::nn::AbnActivation;
using runtime::nn::InPlaceAbnOptions;

at::Tensor activated(const InPlaceAbnOptions& options, at::Tensor y, bool over_input) {
  const at::Scalar parameter = options.parameter;
  switch (options.activation) {
    case AbnActivation::kLeakyRelu:
      return over_input ? at::leaky_relu_(y, parameter) : at::leaky_relu(y, parameter);
    case AbnActivation::kElu:
      return over_input ? at::elu_(y, parameter) : at::elu(y, parameter);
    case AbnActivation::kIdentity:
      break;
  }
  return y;
}

// Returns the largest factor of rounding errors that is allowed.
double guard_of(const InPlaceAbnOptions& options, at::ScalarType type) {
  if (options.guard > 0) return options.guard;
  return type == at::kHalf || type == at::kBFloat16 ? 8 : 1000;
}

std::vector<int64_t> other_dimensions(const at::Tensor& x) {
  std::vector<int64_t> dimensions = {0};
  for (int64_t d = 2; d < x.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

// Returns the channels whose input is kept.
at::Tensor channels_to_keep(const InPlaceAbnOptions& options, const at::Tensor& z,
                            const at::Tensor& weight, const at::Tensor& bias) {
  const double guard = guard_of(options, z.scalar_type());
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble).abs(); };
  at::Tensor inexact;
  if (weight.defined()) {
    inexact = wide(weight).lt(1e-30);
    if (bias.defined()) inexact.logical_or_(wide(bias).gt(wide(weight).mul(guard)));
  }
  if (options.activation == AbnActivation::kElu && z.numel() > 0) {
    // Close to -alpha, y is log(1 + z / alpha), whose error is that of z over exp(y).
    const at::Tensor least =
        z.amin(other_dimensions(z)).to(at::kDouble).div(options.parameter).add(1);
    const at::Tensor far = (weight.defined() ? wide(weight).mul(least) : least).mul(guard).lt(1);
    inexact = inexact.defined() ? inexact.logical_or(far) : far;
  }
  if (!inexact.defined()) return at::empty({0}, z.options().dtype(at::kLong));
  return inexact.nonzero().view({-1});
}

std::vector<double> numbers_of_channels(const at::Tensor& tensor, int64_t channels,
                                        double otherwise) {
  if (!tensor.defined()) return std::vector<double>(static_cast<size_t>(channels), otherwise);
  const at::Tensor host = tensor.to(at::kCPU, at::kDouble).contiguous();
  const double* data = host.const_data_ptr<double>();
  return {data, data + host.numel()};
}

at::Tensor as_tensor(const std::vector<double>& numbers, const at::TensorOptions& options) {
  return at::tensor(numbers, at::TensorOptions(at::kDouble)).to(options);
}

// The backward pass of one call knows these values.
struct AbnCall {
  InPlaceAbnOptions options;
  bool training = false;
  at::Tensor z, weight, bias, mean, inverse_deviation, kept_channels, kept_input;

  AbnInverse inverse() const { return {options.activation, options.parameter}; }
};

struct AbnGradients {
  at::Tensor x, weight, bias;
};

at::Tensor over_channels(const at::Tensor& numbers, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = -1;
  return numbers.view(shape);
}

// By the inverse, for all channels; those that are kept are wrong.
AbnGradients by_inverse(const AbnCall& call, const at::Tensor& dz) {
  const int64_t channels = call.z.size(1);
  const double m = static_cast<double>(call.z.numel()) / static_cast<double>(channels);
  const bool by_kernel = has_abn_kernel(call.z, dz);
  AbnSums sums;
  at::Tensor y, dy;
  if (by_kernel) {
    sums = abn_sums(call.inverse(), call.z, dz);
  } else {
    std::tie(y, dy) = abn_inverted(call.inverse(), call.z, dz);
    const std::vector<int64_t> others = other_dimensions(call.z);
    sums.dy = numbers_of_channels(dy.sum(others, false, at::kDouble), channels, 0);
    sums.dy_y = numbers_of_channels(dy.mul(y).sum(others, false, at::kDouble), channels, 0);
  }
  const std::vector<double> weight = numbers_of_channels(call.weight, channels, 1);
  const std::vector<double> bias = numbers_of_channels(call.bias, channels, 0);
  const std::vector<double> inverse_deviation =
      numbers_of_channels(call.inverse_deviation, channels, 1);
  AbnFactors factors;
  std::vector<double> dweight;
  for (size_t c = 0; c < weight.size(); ++c) {
    const double gamma = weight[c] == 0 ? 1 : weight[c];  // such a channel is kept
    const double d = (sums.dy_y[c] - bias[c] * sums.dy[c]) / gamma;
    dweight.push_back(d);
    const double over_m = call.training ? inverse_deviation[c] / m : 0;
    factors.a.push_back(gamma * inverse_deviation[c]);
    factors.b.push_back(d * over_m);
    factors.c.push_back((gamma * sums.dy[c] - bias[c] * d) * over_m);
  }
  AbnGradients found;
  if (by_kernel) {
    found.x = abn_gradient(call.inverse(), call.z, dz, factors);
  } else {
    const auto spread = [&](const std::vector<double>& numbers) {
      return over_channels(as_tensor(numbers, y.options()), y);
    };
    found.x = dy.mul_(spread(factors.a)).sub_(y.mul_(spread(factors.b))).sub_(spread(factors.c));
    found.x = found.x.to(call.z.scalar_type());
  }
  if (call.weight.defined()) found.weight = as_tensor(dweight, call.weight.options());
  if (call.bias.defined()) found.bias = as_tensor(sums.dy, call.bias.options());
  return found;
}

// Corrects the channels whose input is kept.
void by_input(const AbnCall& call, const at::Tensor& dz, AbnGradients& found) {
  const at::Tensor& channels = call.kept_channels;
  if (channels.numel() == 0) return;
  const auto some = [&](const at::Tensor& t) {
    return t.defined() ? t.index_select(0, channels) : t;
  };
  const at::Tensor z = call.z.index_select(1, channels);
  const at::Tensor dy = abn_inverted(call.inverse(), z, dz.index_select(1, channels)).second;
  const at::Tensor x = call.kept_input.to(dy.scalar_type());
  const auto others = other_dimensions(z);
  const at::Tensor mean = over_channels(some(call.mean), z).to(dy.scalar_type());
  const at::Tensor deviation = over_channels(some(call.inverse_deviation), z).to(dy.scalar_type());
  const at::Tensor normal = (x - mean) * deviation;
  const at::Tensor dweight = dy.mul(normal).sum(others, true), dbias = dy.sum(others, true);
  at::Tensor dx = dy;
  if (call.training) {
    const double m = static_cast<double>(z.numel()) / static_cast<double>(z.size(1));
    dx = dx - dbias / m - normal * (dweight / m);
  }
  dx = dx * deviation;
  if (call.weight.defined()) dx = dx * over_channels(some(call.weight).to(dy.scalar_type()), z);
  found.x.index_copy_(1, channels, dx.to(found.x.scalar_type()));
  if (found.weight.defined()) {
    found.weight.index_copy_(0, channels, dweight.view({-1}).to(found.weight.scalar_type()));
  }
  if (found.bias.defined()) {
    found.bias.index_copy_(0, channels, dbias.view({-1}).to(found.bias.scalar_type()));
  }
}

using MaybeTensor = std::optional<at::Tensor>;

MaybeTensor maybe(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

struct InPlaceAbnNode : torch::autograd::Function<InPlaceAbnNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const MaybeTensor& weight, const MaybeTensor& bias,
                            const MaybeTensor& running_mean, const MaybeTensor& running_var,
                            bool training, int64_t activation, double parameter, double eps,
                            double momentum, double guard) {
    const InPlaceAbnOptions options{.activation = static_cast<AbnActivation>(activation),
                                    .parameter = parameter,
                                    .eps = eps,
                                    .momentum = momentum,
                                    .guard = guard};
    auto [y, mean, inverse_deviation] =
        at::native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps);
    if (!training) {
      mean = running_mean->clone();
      inverse_deviation = running_var->add(eps).rsqrt();
    }
    at::Tensor z = activated(options, std::move(y), true);
    const at::Tensor w = weight.value_or(at::Tensor()), b = bias.value_or(at::Tensor());
    const at::Tensor kept = channels_to_keep(options, z, w, b);
    const at::Tensor kept_input = kept.numel() > 0 ? x.index_select(1, kept) : at::Tensor();
    context->save_for_backward({z, w, b, mean, inverse_deviation, kept, kept_input});
    context->saved_data["training"] = training;
    context->saved_data["activation"] = activation;
    context->saved_data["parameter"] = parameter;
    context->set_materialize_grads(false);
    return z;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& by_result) {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "InPlace-ABN has no second derivative: it was asked for with create_graph=True. Use "
          "a batch norm and its activation");
    }
    torch::autograd::variable_list result(11);
    if (!by_result[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    AbnCall call;
    call.options.activation = static_cast<AbnActivation>(context->saved_data["activation"].toInt());
    call.options.parameter = context->saved_data["parameter"].toDouble();
    call.training = context->saved_data["training"].toBool();
    call.z = saved[0];
    call.weight = saved[1];
    call.bias = saved[2];
    call.mean = saved[3];
    call.inverse_deviation = saved[4];
    call.kept_channels = saved[5];
    call.kept_input = saved[6];
    at::Tensor dz = by_result[0];
    if (dz.strides() != call.z.strides() || dz.scalar_type() != call.z.scalar_type()) {
      dz = at::empty_strided(call.z.sizes(), call.z.strides(), call.z.options()).copy_(dz);
    }
    AbnGradients found = by_inverse(call, dz);
    by_input(call, dz, found);
    result[0] = std::move(found.x);
    result[1] = std::move(found.weight);
    result[2] = std::move(found.bias);
    return result;
  }
};

void check_abn(const at::Tensor& x, const at::Tensor& running_mean, const at::Tensor& running_var,
               bool training, const InPlaceAbnOptions& options) {
  const bool plain =
      x.defined() && x.layout() == at::kStrided && x.is_floating_point() && x.dim() >= 2;
  if (!plain)
    throw InputError("InPlace-ABN takes a dense tensor of real numbers of two dimensions and more");
  if (!(options.parameter > 0) && options.activation != AbnActivation::kIdentity) {
    throw InputError(c10::str("the activation of InPlace-ABN has the parameter ", options.parameter,
                              ", with which it has no inverse: take one above 0, like 0.01"));
  }
  if (!training && (!running_mean.defined() || !running_var.defined())) {
    throw InputError("InPlace-ABN has no running statistics to evaluate with: keep them, or train");
  }
  if (training && x.numel() == x.size(1)) {
    throw InputError("InPlace-ABN in training needs more than one value for each channel");
  }
}

}  // namespace
}  // namespace internal::nn

namespace nn {
namespace in = internal::nn;

at::Tensor in_place_abn(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& running_mean, const at::Tensor& running_var,
                        bool training, const InPlaceAbnOptions& options) {
  in::check_abn(x, running_mean, running_var, training, options);
  const auto needs = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool graph = at::GradMode::is_enabled() && (needs(x) || needs(weight) || needs(bias));
  if (!graph || internal::step::is_recording()) {
    const at::Tensor y =
        at::batch_norm(x, in::maybe(weight), in::maybe(bias), in::maybe(running_mean),
                       in::maybe(running_var), training, options.momentum, options.eps, true);
    return in::activated(options, y, !graph);
  }
  return in::InPlaceAbnNode::apply(x, in::maybe(weight), in::maybe(bias), in::maybe(running_mean),
                                   in::maybe(running_var), training,
                                   static_cast<int64_t>(options.activation), options.parameter,
                                   options.eps, options.momentum, options.guard);
}

InPlaceAbnImpl::InPlaceAbnImpl(int64_t features, InPlaceAbnOptions options)
    : torch::nn::Module("InPlaceAbn"),
      weight(register_parameter("weight", at::ones({features}))),
      bias(register_parameter("bias", at::zeros({features}))),
      running_mean(register_buffer("running_mean", at::zeros({features}))),
      running_var(register_buffer("running_var", at::ones({features}))),
      num_batches_tracked(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))),
      options_(options) {}

at::Tensor InPlaceAbnImpl::forward(const at::Tensor& x) {
  if (is_training()) num_batches_tracked.add_(1);
  return in_place_abn(x, weight, bias, running_mean, running_var, is_training(), options_);
}

}  // namespace nn
}  // namespace reprise::runtime
