#include "runtime/rewrite/convolution/normed_convolution.h"

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include <initializer_list>
#include <tuple>
#include <utility>

#include "runtime/rewrite/reuse/over_operand.h"

namespace reprise::runtime::internal::rewrite {

namespace {

using Stack = std::vector<c10::IValue>;
using enum Convolution::Operand;
using enum NormedConvolution::Operand;
using enum NormedConvolution::Gradient;

at::Tensor tensor_in(const c10::IValue& operand) {
  return operand.isTensor() ? operand.toTensor() : at::Tensor();
}

std::optional<at::Tensor> optional_in(const c10::IValue& operand) {
  const at::Tensor tensor = tensor_in(operand);
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

at::Tensor empty_for(const Geometry& geometry) {
  return at::empty_strided(geometry.sizes, geometry.strides, geometry.dtype);
}

// Runs the call on other tensors, given in the order of the call's own.
Stack run_call(const Call& call, std::initializer_list<at::Tensor> tensors) {
  Stack stack;
  auto next = tensors.begin();
  for (const Argument& argument : call.arguments) {
    if (argument.kind == ArgumentKind::kConstant) {
      stack.push_back(argument.constant);
    } else {
      stack.emplace_back(*next++);
    }
  }
  call.op.callBoxed(stack);
  return stack;
}

// A Part is one part of the batch.
class Part {
 public:
  Part(const Stack& stack, const NormedConvolution& layer, int64_t k)
      : stack_(stack), layer_(layer) {
    std::tie(first_, count_) = samples_of(k, layer.parts, layer.samples);
  }

  int64_t count() const { return count_; }
  at::Tensor of(const at::Tensor& all) const { return all.narrow(0, first_, count_); }

  at::Tensor convolution() const {
    return at::convolution(of(stack_[kInput].toTensor()), stack_[kWeight].toTensor(),
                           optional_in(stack_[kBias]), list(kStride), list(kPadding),
                           list(kDilation), stack_[kTransposed].toBool(), list(kOutputPadding),
                           stack_[kGroups].toInt());
  }

  // Normalises x by the statistics of the whole batch.
  at::Tensor normalised(const at::Tensor& x) const {
    return std::get<0>(at::native_batch_norm(
        x, optional_in(stack_[kScale]), optional_in(stack_[kShift]), stack_[kMean].toTensor(),
        stack_[kVariance].toTensor(), /*training=*/false, layer_.momentum, layer_.epsilon));
  }

  at::Tensor active(const at::Tensor& normal) const {
    return layer_.activation ? run_call(*layer_.activation, {normal})[0].toTensor() : normal;
  }

  // Returns the gradient of the batch norm's result.
  at::Tensor gradient(const at::Tensor& x) const {
    at::Tensor dy = of(stack_[kGradient].toTensor());
    if (!layer_.activation) return dy.clone();
    const at::Tensor normal = normalised(x), result = active(normal);
    if (layer_.pooling) {
      const at::Tensor places = of(stack_[kPlaces].toTensor()).to(at::kLong);
      dy = run_call(*layer_.pooling_backward, {dy, result, places})[0].toTensor();
    }
    const at::Tensor& kept = layer_.from_result ? result : normal;
    return run_call(*layer_.activation_backward, {dy, kept})[0].toTensor();
  }

  // The gradients of the batch norm's bias and weight, or what they would be.
  std::pair<at::Tensor, at::Tensor> sums(const at::Tensor& x, const at::Tensor& dy) const {
    auto [dx, scale, shift] = at::native_batch_norm_backward(
        dy, x, optional_in(stack_[kScale]), stack_[kMean].toTensor(), stack_[kVariance].toTensor(),
        {}, {}, /*train=*/false, layer_.epsilon, {false, true, true});
    return {std::move(shift), std::move(scale)};
  }

  // Returns the gradients of the convolution's input, weight and bias, as far as they are wanted.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& dx) const {
    const at::Tensor weight = stack_[kWeight].toTensor();
    const std::array<int64_t, 1> bias{
        stack_[kTransposed].toBool() ? weight.size(1) * stack_[kGroups].toInt() : weight.size(0)};
    const auto& wanted = layer_.gradients;
    return at::convolution_backward(
        dx, of(stack_[kInput].toTensor()), weight, at::OptionalIntArrayRef(bias), list(kStride),
        list(kPadding), list(kDilation), stack_[kTransposed].toBool(), list(kOutputPadding),
        stack_[kGroups].toInt(),
        {wanted[kOfInput].has_value(), wanted[kOfWeight].has_value(), wanted[kOfBias].has_value()});
  }

 private:
  std::vector<int64_t> list(Convolution::Operand which) const {
    return stack_[which].toIntVector();
  }

  const Stack& stack_;
  const NormedConvolution& layer_;
  int64_t first_ = 0, count_ = 0;
};

// Shapes one number per channel so that it broadcasts over a batch of samples.
at::Tensor beside(const at::Tensor& channels, const at::Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = channels.size(0);
  return channels.view(sizes);
}

void add_to(at::Tensor& sum, const at::Tensor& part, bool is_first) {
  if (!sum.defined()) return;
  if (is_first) {
    sum.copy_(part);
  } else {
    sum.add_(part);
  }
}

}  // namespace

void normed_statistics(Stack& stack, const NormedConvolution& layer) {
  // These describe the samples so far: the mean, and the sum of squared distances from it, divided
  // by the pixels of a sample.
  at::Tensor mean, squares;
  int64_t before = 0, pixels = 1;
  at::ScalarType type = at::kFloat;
  for (int64_t k = 0; k < layer.parts; ++k) {
    const Part part(stack, layer, k);
    const at::Tensor x = part.convolution();
    pixels = x.numel() / x.size(0) / x.size(1);
    auto [part_mean, part_variance] = at::batch_norm_update_stats(x, {}, {}, layer.momentum);
    type = part_mean.scalar_type();
    part_mean = part_mean.to(at::kDouble);
    part_variance = part_variance.to(at::kDouble);
    if (k == 0) {
      mean = part_mean;
      squares = part_variance.mul_(part.count());
    } else {
      const auto m = static_cast<double>(before), n = static_cast<double>(part.count());
      const at::Tensor apart = part_mean.sub_(mean);
      squares.add_(part_variance, n).addcmul_(apart, apart, m * n / (m + n));
      mean.add_(apart, n / (m + n));
    }
    before += part.count();
  }
  const at::Tensor variance = squares.div(before);
  const auto advance = [&](const at::Tensor& running, const at::Tensor& now) {
    if (!running.defined()) return;
    at::Tensor(running)
        .mul_(1 - layer.momentum)
        .add_(now.to(running.scalar_type()), layer.momentum);
  };
  const auto all = static_cast<double>(before * pixels);
  advance(tensor_in(stack[kRunningMean]), mean);
  advance(tensor_in(stack[kRunningVariance]), variance * (all / (all - 1)));
  at::Tensor result_mean = mean.to(type), result_variance = variance.to(type);
  stack.clear();
  stack.emplace_back(std::move(result_mean));
  stack.emplace_back(std::move(result_variance));
}

void normed_forward(Stack& stack, const NormedConvolution& layer) {
  at::Tensor result = empty_for(layer.result), places;
  if (layer.pooling) places = empty_for(layer.places);
  for (int64_t k = 0; k < layer.parts; ++k) {
    const Part part(stack, layer, k);
    const at::Tensor y = part.active(part.normalised(part.convolution()));
    if (layer.pooling) {
      const Stack pooled = run_call(*layer.pooling, {y});
      part.of(result).copy_(pooled[0].toTensor());
      part.of(places).copy_(pooled[1].toTensor());
    } else {
      part.of(result).copy_(y);
    }
  }
  stack.clear();
  stack.emplace_back(std::move(result));
  stack.emplace_back(std::move(places));
}

void normed_backward(Stack& stack, const NormedConvolution& layer) {
  at::Tensor shift, scale;  // sums of dy and dy x^
  at::Tensor x, dy;         // left from the last part, where the second pass begins
  int64_t elements = 0;     // per channel of the batch
  for (int64_t k = 0; k < layer.parts; ++k) {
    const Part part(stack, layer, k);
    x = at::Tensor();
    dy = at::Tensor();
    x = part.convolution();
    dy = part.gradient(x);
    elements += x.numel() / x.size(1);
    const auto [part_shift, part_scale] = part.sums(x, dy);
    shift = k == 0 ? part_shift : shift.add_(part_shift);
    scale = k == 0 ? part_scale : scale.add_(part_scale);
  }
  const at::Tensor inverse = stack[kVariance].toTensor().add(layer.epsilon).rsqrt_();
  const at::Tensor scaling = tensor_in(stack[kScale]);
  const at::Tensor factor = scaling.defined() ? inverse * scaling : inverse;
  const at::Tensor mean_dy = shift / elements, mean_product = scale / elements;
  std::array<at::Tensor, kGradients> results;
  for (size_t g = 0; g < results.size(); ++g) {
    if (layer.gradients[g]) results[g] = empty_for(*layer.gradients[g]);
  }
  for (int64_t k = layer.parts; k-- > 0;) {
    const Part part(stack, layer, k);
    const bool is_first = k == layer.parts - 1;
    if (!is_first) {
      x = part.convolution();
      dy = part.gradient(x);
    }
    x.sub_(beside(stack[kMean].toTensor(), x)).mul_(beside(inverse, x));
    dy.sub_(beside(mean_dy, x)).addcmul_(x, beside(mean_product, x), -1).mul_(beside(factor, x));
    x = at::Tensor();
    const auto [input, weight, bias] = part.convolution_backward(dy);
    dy = at::Tensor();
    if (results[kOfInput].defined()) part.of(results[kOfInput]).copy_(input);
    add_to(results[kOfWeight], weight, is_first);
    add_to(results[kOfBias], bias, is_first);
  }
  if (results[kOfScale].defined()) results[kOfScale].copy_(scale);
  if (results[kOfShift].defined()) results[kOfShift].copy_(shift);
  stack.clear();
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

}  // namespace reprise::runtime::internal::rewrite
