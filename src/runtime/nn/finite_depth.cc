// This is the solver of Vertechi and Bergomi, arXiv 2204.12786, section 3. Their names and those of
// this file:
//
//   y = W z + b, z = sigma(y) + z0            solve(): block i reads columns 0..begin of z
//   y~ = sigma'(y) z~, z~ = z~0 + W^T y~      backward(), from the last block to the first
//   W~ = y~ z^T                               of each block
//
// Tests: tests/runtime/finite_depth_test.cc.
#include "reprise/runtime/nn/finite_depth.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

// A BlockActivation writes an activation over its input. Its `backward` multiplies the derivative
// by a gradient, and needs the result alone.
struct BlockActivation {
  const char* name;
  void (*apply)(at::Tensor&);
  at::Tensor (*backward)(const at::Tensor& gradient, const at::Tensor& result);
};

const std::vector<BlockActivation>& block_activations() {
  using T = at::Tensor;
  static const std::vector<BlockActivation> all = {
      {"relu", [](T& y) { y.relu_(); },
       [](const T& g, const T& z) { return at::threshold_backward(g, z, 0); }},
      {"leaky-relu", [](T& y) { at::leaky_relu_(y, 0.01); },
       [](const T& g, const T& z) { return at::leaky_relu_backward(g, z, 0.01, true); }},
      {"tanh", [](T& y) { y.tanh_(); },
       [](const T& g, const T& z) { return at::tanh_backward(g, z); }},
      {"sigmoid", [](T& y) { y.sigmoid_(); },
       [](const T& g, const T& z) { return at::sigmoid_backward(g, z); }},
      {"identity", [](T&) {}, [](const T& g, const T&) { return g.clone(); }}};
  return all;
}

size_t block_activation(const std::string& name) {
  std::string names;
  for (size_t i = 0; i < block_activations().size(); ++i) {
    if (block_activations()[i].name == name) return i;
    names += (names.empty() ? "" : ", ") + std::string(block_activations()[i].name);
  }
  throw InputError("a machine of finite depth has no activation '" + name + "': there are " +
                   names);
}

struct FiniteDepthNode : torch::autograd::Function<FiniteDepthNode> {
  // `parameters` are the weights, then the biases.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            at::TensorList parameters, int64_t activation) {
    const size_t blocks = parameters.size() / 2;
    int64_t columns = x.size(1);
    for (size_t i = 0; i < blocks; ++i) columns += parameters[i].size(0);
    const at::Tensor z = at::empty({x.size(0), columns}, x.options());
    z.narrow(1, 0, x.size(1)).copy_(x);
    int64_t begin = x.size(1);
    for (size_t i = 0; i < blocks; ++i) {
      const int64_t size = parameters[i].size(0);
      at::Tensor block = z.narrow(1, begin, size);
      at::addmm_out(block, parameters[blocks + i], z.narrow(1, 0, begin), parameters[i].t());
      block_activations()[activation].apply(block);
      begin += size;
    }
    std::vector<at::Tensor> kept(parameters.begin(),
                                 parameters.begin() + static_cast<int64_t>(blocks));
    kept.push_back(z);
    context->save_for_backward(std::move(kept));
    context->saved_data["activation"] = activation;
    context->set_materialize_grads(false);
    return z;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& by_result) {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "a machine of finite depth has no second derivative: it was asked for with "
          "create_graph=True");
    }
    const auto saved = context->get_saved_variables();
    const size_t blocks = saved.size() - 1;
    torch::autograd::variable_list found(2 * blocks + 2);
    if (!by_result[0].defined()) return found;
    const at::Tensor& z = saved.back();
    const auto activation = static_cast<size_t>(context->saved_data["activation"].toInt());
    const at::Tensor dz = by_result[0].clone(at::MemoryFormat::Contiguous);
    int64_t end = z.size(1);
    for (size_t i = blocks; i-- > 0;) {
      const at::Tensor& weight = saved[i];
      const int64_t size = weight.size(0), begin = end - size;
      const at::Tensor before = z.narrow(1, 0, begin);
      const at::Tensor dy = block_activations()[activation].backward(dz.narrow(1, begin, size),
                                                                     z.narrow(1, begin, size));
      found[1 + i] = dy.t().mm(before);
      found[1 + blocks + i] = dy.sum(0);
      dz.narrow(1, 0, begin).addmm_(dy, weight);
      end = begin;
    }
    found[0] = dz.narrow(1, 0, end).clone();
    return found;
  }
};

}  // namespace
}  // namespace internal::nn

namespace nn {

at::Tensor finite_depth(const at::Tensor& x, const Tensors& weights, const Tensors& biases,
                        const std::string& activation) {
  const auto kind = static_cast<int64_t>(internal::nn::block_activation(activation));
  if (!x.defined() || !x.is_floating_point() || x.dim() < 1) {
    throw InputError(
        "a machine of finite depth takes real numbers with its input block as last dimension");
  }
  if (weights.empty() || weights.size() != biases.size()) {
    throw InputError(
        "a machine of finite depth has one weight and one bias for each block after the first");
  }
  int64_t columns = x.size(-1);
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& w = weights[i];
    if (w.dim() != 2 || w.size(1) != columns || biases[i].dim() != 1 ||
        biases[i].size(0) != w.size(0)) {
      throw InputError(
          c10::str("weight ", i, " of a machine of finite depth has the shape ", w.sizes(),
                   " and its bias ", biases[i].sizes(), ": the weight is to have ", columns,
                   " columns, one for each number before its block, and the bias its rows"));
    }
    columns += w.size(0);
  }
  Tensors parameters = weights;
  parameters.insert(parameters.end(), biases.begin(), biases.end());
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor z = internal::nn::FiniteDepthNode::apply(rows, at::TensorList(parameters), kind);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  return z.view(sizes);
}

FiniteDepthImpl::FiniteDepthImpl(std::vector<int64_t> sizes, std::string activation)
    : torch::nn::Module("FiniteDepth"), activation_(std::move(activation)) {
  internal::nn::block_activation(activation_);
  if (sizes.size() < 2 || *std::min_element(sizes.begin(), sizes.end()) < 1) {
    throw InputError(
        "a machine of finite depth has an input block and at least one more, of sizes above 0");
  }
  int64_t before = sizes[0];
  for (size_t i = 1; i < sizes.size(); ++i) {
    const double bound = 1 / std::sqrt(static_cast<double>(before));
    const auto some = [&](std::vector<int64_t> shape) {
      return at::empty(shape).uniform_(-bound, bound);
    };
    weights_.push_back(register_parameter("weight" + std::to_string(i), some({sizes[i], before})));
    biases_.push_back(register_parameter("bias" + std::to_string(i), some({sizes[i]})));
    before += sizes[i];
  }
}

at::Tensor FiniteDepthImpl::forward(const at::Tensor& x) {
  return finite_depth(x, weights_, biases_, activation_);
}

}  // namespace nn
}  // namespace reprise::runtime
