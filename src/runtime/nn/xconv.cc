// XConv. The names of Louboutin et al., arXiv 2106.06998, and of this file:
//
//   X, dY                      the input, the gradient of the result
//   z_i, i = 1..r              probes: random signs, of each sample
//   X^ = X z, r numbers        projections()
//   dW_k = 1/r sum_i (dY z_i shifted by k) X^_i^T    estimated_weight_gradient(); im2col() shifts
//
// Tests: tests/runtime/xconv_test.cc, tests/python/test_approximate_layers.py.
#include "runtime/nn/xconv.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace internal::nn {

using runtime::nn::XConvOptions;

Probes random_signs(uint64_t seed, int64_t probes, const at::Tensor& like) {
  return [=, sizes = like.sizes().vec(), options = like.options()](int64_t sample) {
    const at::Generator generator =
        at::detail::createCPUGenerator(seed + static_cast<uint64_t>(sample));
    const at::Tensor bits = at::empty({probes, sizes[0], sizes[1]}, at::TensorOptions(at::kByte));
    bits.random_(0, 2, generator);
    return bits.to(options).mul_(2).sub_(1);
  };
}

at::Tensor projections(const at::Tensor& x, const Probes& probes) {
  std::vector<at::Tensor> all;
  for (int64_t s = 0; s < x.size(0); ++s) {
    const at::Tensor signs = probes(s);
    all.push_back(x[s].reshape({x.size(1), -1}).mm(signs.view({signs.size(0), -1}).t()));
  }
  return at::stack(all);
}

at::Tensor estimated_weight_gradient(const at::Tensor& dy, const at::Tensor& projected,
                                     const Probes& probes, at::IntArrayRef weight_sizes,
                                     const XConvOptions& options) {
  const int64_t out = weight_sizes[0], in = weight_sizes[1],
                kernel = weight_sizes[2] * weight_sizes[3];
  const int64_t groups = options.groups, count = projected.size(2);
  const at::ScalarType wide = dy.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor sum = at::zeros({groups, out / groups * kernel, in}, dy.options().dtype(wide));
  for (int64_t s = 0; s < dy.size(0); ++s) {
    const at::Tensor shifted =
        at::im2col(probes(s).unsqueeze(0), weight_sizes.slice(2), options.dilation, options.padding,
                   options.stride)[0];  // (probes kernel) x pixels
    const at::Tensor by_probe = dy[s].reshape({out, -1}).mm(shifted.t());  // out x (probes kernel)
    const at::Tensor left = by_probe.view({groups, out / groups, count, kernel})
                                .transpose(2, 3)
                                .reshape({groups, -1, count});
    const at::Tensor right = projected[s].view({groups, in, count}).transpose(1, 2);
    sum.baddbmm_(left.to(wide), right.to(wide));
  }
  return sum.div_(count).view({out, kernel, in}).transpose(1, 2).reshape(weight_sizes);
}

namespace {

struct XConvNode : torch::autograd::Function<XConvNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::vector<int64_t>& numbers, int64_t seed) {
    const XConvOptions options = options_of(numbers);
    const at::Tensor y = at::conv2d(x, weight, bias, options.stride, options.padding,
                                    options.dilation, options.groups);
    at::Tensor projected;
    if (weight.requires_grad()) {
      const Probes probes = random_signs(static_cast<uint64_t>(seed), options.probes, x[0][0]);
      projected = projections(x, probes);
    }
    context->save_for_backward({projected, weight});
    context->saved_data["numbers"] = numbers;
    context->saved_data["seed"] = seed;
    context->saved_data["sizes"] = x.sizes().vec();
    context->saved_data["needed"] = std::vector<int64_t>{x.requires_grad(), weight.requires_grad(),
                                                         bias.has_value() && bias->requires_grad()};
    context->set_materialize_grads(false);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& by_result) {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "xconv2d has no second derivative: it was asked for with create_graph=True. Use a "
          "plain convolution");
    }
    torch::autograd::variable_list found(5);
    const at::Tensor& dy = by_result[0];
    if (!dy.defined()) return found;
    const XConvOptions options = options_of(context->saved_data["numbers"].toIntVector());
    const std::vector<int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const std::vector<int64_t> needed = context->saved_data["needed"].toIntVector();
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    if (needed[0] != 0 || needed[2] != 0) {
      // Only the sizes of the input are looked at.
      const at::Tensor shape = at::empty({1}, dy.options()).expand(sizes);
      const std::vector<int64_t> of_bias = {weight.size(0)}, no_shift = {0, 0};
      auto [dx, unused, dbias] =
          at::convolution_backward(dy, shape, weight, at::IntArrayRef(of_bias), options.stride,
                                   options.padding, options.dilation, false, no_shift,
                                   options.groups, {needed[0] != 0, false, needed[2] != 0});
      found[0] = std::move(dx);
      found[2] = std::move(dbias);
    }
    if (needed[1] != 0) {
      const at::Tensor like = at::empty({1}, dy.options()).expand({sizes[2], sizes[3]});
      const Probes probes = random_signs(static_cast<uint64_t>(context->saved_data["seed"].toInt()),
                                         options.probes, like);
      found[1] = estimated_weight_gradient(dy, saved[0], probes, weight.sizes(), options)
                     .to(weight.scalar_type());
    }
    return found;
  }

  static XConvOptions options_of(const std::vector<int64_t>& n) {
    return {.probes = n[0],
            .stride = {n[1], n[2]},
            .padding = {n[3], n[4]},
            .dilation = {n[5], n[6]},
            .groups = n[7]};
  }
};

}  // namespace
}  // namespace internal::nn

namespace nn {

at::Tensor xconv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                   const XConvOptions& options) {
  if (options.probes < 1) {
    throw InputError(c10::str("xconv2d needs at least one probe, not ", options.probes));
  }
  if (!x.defined() || x.dim() != 4 || !weight.defined() || weight.dim() != 4 ||
      !x.is_floating_point()) {
    throw InputError("xconv2d takes real numbers of samples x channels x height x width");
  }
  const std::optional<at::Tensor> given = bias.defined() ? std::optional(bias) : std::nullopt;
  const bool graph = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad() ||
                                                    (given && given->requires_grad()));
  if (!graph) {
    return at::conv2d(x, weight, given, options.stride, options.padding, options.dilation,
                      options.groups);
  }
  const auto draw = [] { return at::randint(int64_t{1} << 62, {1}, at::kLong).item<int64_t>(); };
  const int64_t seed = options.seed ? static_cast<int64_t>(*options.seed) : draw();
  const std::vector<int64_t> numbers = {
      options.probes,     options.stride[0],   options.stride[1],   options.padding[0],
      options.padding[1], options.dilation[0], options.dilation[1], options.groups};
  return internal::nn::XConvNode::apply(x, weight, given, numbers, seed);
}

}  // namespace nn
}  // namespace reprise::runtime
