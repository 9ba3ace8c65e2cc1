#include "runtime/rewrite/norm/batch_norm_kernel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/norm/channel_norm.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::rewrite {

using state::bitwise_equal;

namespace {

using Stack = std::vector<c10::IValue>;

constexpr int64_t kChannelBlock = 4;  // channels whose statistics are taken together

at::Tensor tensor_of(const Stack& stack, size_t operand) {
  return stack[operand].isTensor() ? stack[operand].toTensor() : at::Tensor();
}

// Returns the data of the tensor; null if it is undefined.
const float* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

float* room_in(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

float at_or(const float* row, int64_t channel, float otherwise) {
  return row != nullptr ? row[channel] : otherwise;
}

ChannelShape shape_of(const at::Tensor& input) {
  const int64_t stride = input.numel() / input.size(0);
  return {input.size(0), stride, stride / input.size(1)};
}

}  // namespace

void batch_norm_statistics(Stack& stack) {
  const at::Tensor input = tensor_of(stack, BatchNorm::kInput);
  const at::Tensor running_mean = tensor_of(stack, BatchNorm::kRunningMean);
  const at::Tensor running_variance = tensor_of(stack, BatchNorm::kRunningVariance);
  const auto momentum = static_cast<float>(stack[BatchNorm::kMomentum].toDouble());
  const double epsilon = stack[BatchNorm::kEpsilon].toDouble();
  const int64_t channels = input.size(1);
  const ChannelShape shape = shape_of(input);
  const int64_t m = shape.samples * shape.pixels;
  at::Tensor mean = at::empty({channels}, input.options());
  at::Tensor inverse = at::empty({channels}, input.options());
  const float* const inputs = data_of(input);
  float *const means = room_in(mean), *const inverses = room_in(inverse);
  float *const running_means = room_in(running_mean), *const running_variances =
                                                          room_in(running_variance);
  const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kChannelBlock, last = std::min(channels, end * kChannelBlock);
    float* const squares = inverses;  // the squares come first, in the same memory
    channel_statistics(inputs + first * shape.pixels, shape, last - first, means + first,
                       squares + first);
    for (int64_t c = first; c < last; ++c) {
      if (running_means != nullptr) {
        running_means[c] = momentum * means[c] + (1 - momentum) * running_means[c];
      }
      if (running_variances != nullptr) {
        const double unbiased = squares[c] / static_cast<float>(m - 1);
        running_variances[c] =
            static_cast<float>(momentum * unbiased + (1 - momentum) * running_variances[c]);
      }
      const double variance = squares[c] / static_cast<float>(m);
      inverses[c] = static_cast<float>(1 / std::sqrt(variance + epsilon));
    }
  });
  stack.clear();
  stack.emplace_back(std::move(mean));
  stack.emplace_back(std::move(inverse));
}

void batch_norm_normalise(Stack& stack) {
  const at::Tensor input = tensor_of(stack, BatchNorm::kInput);
  const at::Tensor weight = tensor_of(stack, BatchNorm::kWeight);
  const at::Tensor bias = tensor_of(stack, BatchNorm::kBias);
  const at::Tensor mean = tensor_of(stack, BatchNorm::kMean);
  const at::Tensor inverse = tensor_of(stack, BatchNorm::kInverse);
  const int64_t channels = input.size(1);
  const ChannelShape shape = shape_of(input);
  at::Tensor output = at::empty_like(input);
  const float *const inputs = data_of(input), *const weights = data_of(weight);
  const float *const biases = data_of(bias), *const means = data_of(mean);
  const float* const inverses = data_of(inverse);
  float* const outputs = room_in(output);
  at::parallel_for(0, shape.samples * channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t c = row % channels, first = row * shape.pixels;
      normalise_row(inputs + first, outputs + first, shape.pixels,
                    {means[c], inverses[c], at_or(weights, c, 1), at_or(biases, c, 0)});
    }
  });
  stack.clear();
  stack.emplace_back(std::move(output));
}

std::array<at::Tensor, 3> batch_norm_backward(const Stack& stack, const at::Tensor& result) {
  const at::Tensor grad = tensor_of(stack, BatchNormBackward::kGradOutput);
  const at::Tensor input = tensor_of(stack, BatchNormBackward::kInput);
  const at::Tensor weight = tensor_of(stack, BatchNormBackward::kWeight);
  const at::Tensor mean = tensor_of(stack, BatchNormBackward::kMean);
  const at::Tensor inverse = tensor_of(stack, BatchNormBackward::kInverse);
  const auto mask = stack[BatchNormBackward::kMask].toBoolList();
  const int64_t channels = input.size(1);
  const ChannelShape shape = shape_of(input);
  std::array<at::Tensor, 3> gradients{result};
  for (size_t g = 1; g < gradients.size(); ++g) {
    if (mask.get(g)) gradients[g] = at::empty({channels}, mean.options());
  }
  const float *const grads = data_of(grad), *const inputs = data_of(input);
  const float *const weights = data_of(weight), *const means = data_of(mean);
  const float* const inverses = data_of(inverse);
  float *const results = room_in(result), *const of_weight = room_in(gradients[1]),
               *const of_bias = room_in(gradients[2]);
  at::parallel_for(0, channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = c * shape.pixels;
      const ChannelGradient sums =
          channel_backward(grads + first, inputs + first, results + first, shape,
                           {means[c], inverses[c], at_or(weights, c, 1)});
      if (of_weight != nullptr) of_weight[c] = sums.weight;
      if (of_bias != nullptr) of_bias[c] = sums.bias;
    }
  });
  return gradients;
}

namespace {

at::Tensor wave(at::IntArrayRef sizes, double step) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat)
      .mul_(step)
      .sin_()
      .add_(2)
      .view(sizes);
}

template <class Results>
bool same_bits(const Results& ours, const Stack& atens) {
  return std::equal(
      ours.begin(), ours.end(), atens.begin(), atens.end(),
      [](const at::Tensor& a, const c10::IValue& b) { return bitwise_equal(a, b.toTensor()); });
}

bool forward_has_bits_of_aten(int64_t pixels) {
  constexpr int64_t kChannels = kChannelBlock + 1;
  const at::Tensor input = wave({3, kChannels, pixels}, 1.3), row = wave({kChannels}, 0.3);
  const at::Tensor mean = row.clone(), variance = row.clone();
  const auto [output, save_mean, save_inverse] = at::native_batch_norm(
      input, row, row, mean, variance, /*training=*/true, /*momentum=*/0.1, /*eps=*/1e-5);
  const at::Tensor our_mean = row.clone(), our_variance = row.clone();
  Stack stack{input, row, row, our_mean, our_variance, true, 0.1, 1e-5};
  Stack normalise = stack;
  batch_norm_statistics(stack);
  normalise.insert(normalise.end(), stack.begin(), stack.end());
  batch_norm_normalise(normalise);
  return same_bits(std::vector<at::Tensor>{normalise[0].toTensor(), stack[0].toTensor(),
                                           stack[1].toTensor(), our_mean, our_variance},
                   {output, save_mean, save_inverse, mean, variance});
}

bool backward_has_bits_of_aten(int64_t pixels) {
  const at::Tensor grad = wave({3, 2, pixels}, 0.7), input = wave({3, 2, pixels}, 1.3);
  const at::Tensor row = wave({2}, 0.3);
  const auto [of_input, of_weight, of_bias] =
      at::native_batch_norm_backward(grad, input, row, row, row, row, row, /*train=*/true,
                                     /*eps=*/1e-5, {true, true, true});
  const Stack stack{grad, input, row,  row,  row,
                    row,  row,   true, 1e-5, c10::List<bool>({true, true, true})};
  return same_bits(batch_norm_backward(stack, at::empty_like(input)),
                   {of_input, of_weight, of_bias});
}

// Compares rows shorter than a vector, rows of whole vectors, and rows with a rest. The order of
// additions depends on nothing else.
bool has_bits_of_aten() {
  for (const int64_t pixels : {3, 8, 3 * 8, 3 * 8 + 5}) {
    if (!forward_has_bits_of_aten(pixels) || !backward_has_bits_of_aten(pixels)) return false;
  }
  return true;
}

// A single channel, or a single pixel, looks like another memory format, for which ATen sums in
// another order.
bool has_channels_and_pixels(const Geometry& input) {
  int64_t pixels = 1;
  for (size_t d = 2; d < input.sizes.size(); ++d) pixels *= input.sizes[d];
  return input.sizes[0] > 0 && input.sizes[1] > 1 && pixels > 1;
}

}  // namespace

bool fits_batch_norm_kernel(const Call& call, const Recording& recording) {
  static const bool has_kernel = has_channel_norm() && has_bits_of_aten();
  if (!has_kernel || !recording.device.is_cpu()) return false;
  for (const Argument& argument : call.arguments) {
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kNone) continue;
      if (ref.geometry.dtype != at::kFloat || !is_in_rows(ref.geometry)) return false;
      if (ref.geometry.conjugate || ref.geometry.negative) return false;
    }
  }
  const bool backward = call.op.operator_name().name == "aten::native_batch_norm_backward";
  const size_t training = backward ? size_t{BatchNormBackward::kTrain} : BatchNorm::kTraining;
  const size_t input = backward ? size_t{BatchNormBackward::kInput} : BatchNorm::kInput;
  return call.arguments[training].constant.toBool() &&
         has_channels_and_pixels(call.arguments[input].tensors[0].geometry);
}

}  // namespace reprise::runtime::internal::rewrite
