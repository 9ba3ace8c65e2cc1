// The backward of a batch norm takes each channel by itself, so that the result may go where one of the operands
// was. (An overload of the operator that writes in place does not exist: the generated one computes aside and
// copies.) A kernel of ours does that where it gives ATen's bits here; elsewhere ATen's own on copies of some channels
// at a time.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "prepare.h"
#include "rewrite/batch_norm_channel.h"
#include "rewrite/over_operand.h"

namespace reprise::runtime {
namespace {

enum Operand : size_t {
  kGradOutput,
  kInput,
  kWeight,
  kRunningMean,
  kRunningVariance,
  kMean,
  kInverse,
  kTrain,
  kEpsilon,
  kMask
};

using Stack = std::vector<c10::IValue>;
using Gradients = std::array<at::Tensor, 3>;  // of input, weight and bias

at::Tensor tensor_of(const Stack& stack, Operand operand) {
  return stack[operand].isTensor() ? stack[operand].toTensor() : at::Tensor();
}

std::array<bool, 3> mask_of(const Stack& stack) {
  const auto list = stack[kMask].toBoolList();
  return {list.get(0), list.get(1), list.get(2)};
}

Gradients room_for(const at::Tensor& result, const Stack& stack) {
  const std::array<bool, 3> mask = mask_of(stack);
  Gradients gradients{result};
  for (size_t g = 1; g < gradients.size(); ++g) {
    if (mask[g]) gradients[g] = at::empty({result.size(1)}, stack[kMean].toTensor().options());
  }
  return gradients;
}

// What the kernel of ours reads.
constexpr std::array kRows{kGradOutput, kInput, kWeight, kMean, kInverse};

bool is_row_of_floats(const at::Tensor& tensor) {
  return !tensor.defined() ||
         (tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() && tensor.is_contiguous());
}

// A single channel looks like another memory format, for which ATen sums in another order.
bool is_for_channel_kernel(const Stack& stack) {
  return tensor_of(stack, kInput).size(1) > 1 &&
         std::all_of(kRows.begin(), kRows.end(),
                     [&](Operand operand) { return is_row_of_floats(tensor_of(stack, operand)); });
}

Gradients by_channel_kernel(const Stack& stack, const at::Tensor& result) {
  Gradients gradients = room_for(result, stack);
  const at::Tensor input = tensor_of(stack, kInput), weight = tensor_of(stack, kWeight);
  const int64_t samples = input.size(0), channels = input.size(1);
  const ChannelShape shape{samples, input.numel() / samples, input.numel() / samples / channels};
  const float* const grads = tensor_of(stack, kGradOutput).const_data_ptr<float>();
  const float* const inputs = input.const_data_ptr<float>();
  const float* const weights = weight.defined() ? weight.const_data_ptr<float>() : nullptr;
  const float* const means = tensor_of(stack, kMean).const_data_ptr<float>();
  const float* const inverses = tensor_of(stack, kInverse).const_data_ptr<float>();
  float* const results = result.mutable_data_ptr<float>();
  std::array<float*, 3> sums{};
  for (size_t g = 1; g < gradients.size(); ++g) {
    if (gradients[g].defined()) sums[g] = gradients[g].mutable_data_ptr<float>();
  }
  at::parallel_for(0, channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = c * shape.pixels;
      const ChannelGradient sum =
          batch_norm_backward(grads + first, inputs + first, results + first, shape,
                              {means[c], inverses[c], weights != nullptr ? weights[c] : 1.0F});
      if (sums[1] != nullptr) sums[1][c] = sum.weight;
      if (sums[2] != nullptr) sums[2][c] = sum.bias;
    }
  });
  return gradients;
}

// At least eight where that leaves each two channels, for the reason above.
int64_t count_blocks(int64_t channels, int64_t bytes) {
  return std::max<int64_t>(1, std::min(channels / 2, blocks_in_cache(bytes)));
}

Gradients by_copies(const Stack& stack, const at::Tensor& result) {
  Gradients gradients = room_for(result, stack);
  const at::Tensor grad = tensor_of(stack, kGradOutput), input = tensor_of(stack, kInput);
  const int64_t channels = input.size(1);
  const int64_t blocks = count_blocks(channels, static_cast<int64_t>(input.nbytes()));
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t first = channels * k / blocks, count = channels * (k + 1) / blocks - first;
    const auto part = [&](Operand operand) { return part_of(stack[operand], 0, first, count); };
    const auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
        grad.narrow(1, first, count).contiguous(), input.narrow(1, first, count).contiguous(),
        part(kWeight), part(kRunningMean), part(kRunningVariance), part(kMean), part(kInverse),
        stack[kTrain].toBool(), stack[kEpsilon].toDouble(), mask_of(stack));
    gradients[0].narrow(1, first, count).copy_(of_input);
    if (gradients[1].defined()) gradients[1].narrow(0, first, count).copy_(of_weight);
    if (gradients[2].defined()) gradients[2].narrow(0, first, count).copy_(of_bias);
  }
  return gradients;
}

// Whether both are the same to the last bit, on samples of fewer elements than a vector has, of whole vectors, and
// with a rest. No more is to be asked: the order depends on nothing else.
bool channel_kernel_has_bits_of_aten() {
  constexpr int64_t kSamples = 3, kChannels = 2;
  for (const int64_t pixels : {1 + 2, 8, 3 * 8, 3 * 8 + 5}) {
    const auto wave = [](at::IntArrayRef sizes, double step) {
      const int64_t elements = c10::multiply_integers(sizes);
      return at::arange(elements, at::kFloat).mul_(step).sin_().add_(0.5).view(sizes);
    };
    const at::Tensor grad = wave({kSamples, kChannels, pixels}, 0.7);
    const at::Tensor input = wave({kSamples, kChannels, pixels}, 1.3);
    const at::Tensor row = wave({kChannels}, 0.3);
    const auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
        grad, input, row, row, row, row, row, /*train=*/true, 1e-5, {true, true, true});
    const Stack stack{grad, input, row,  row,  row,
                      row,  row,   true, 1e-5, c10::List<bool>({true, true, true})};
    const Gradients ours = by_channel_kernel(stack, at::empty_like(input));
    if (!bitwise_equal(ours[0], of_input) || !bitwise_equal(ours[1], of_weight) ||
        !bitwise_equal(ours[2], of_bias)) {
      return false;
    }
  }
  return true;
}

// [grad_input, grad_weight, grad_bias]; grad_input lies in the operand at `over`.
void run(Stack& stack, size_t over, bool has_kernel) {
  const at::Tensor result = stack[over].toTensor();
  const bool by_kernel = has_kernel && is_for_channel_kernel(stack);
  Gradients gradients = by_kernel ? by_channel_kernel(stack, result) : by_copies(stack, result);
  stack.assign(std::make_move_iterator(gradients.begin()),
               std::make_move_iterator(gradients.end()));
}

// A single pixel has every memory format at once, and ATen takes its channels together.
bool has_pixels(const Geometry& geometry) {
  int64_t pixels = 1;
  for (size_t d = 2; d < geometry.sizes.size(); ++d) pixels *= geometry.sizes[d];
  return pixels > 1;
}

}  // namespace

void batch_norm_by_channels(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  static const bool has_kernel = has_channel_kernel() && channel_kernel_has_bits_of_aten();
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    if (call.op.operator_name().name != "aten::native_batch_norm_backward") continue;
    const TensorRef& grad_input = call.outputs[0][0];
    // In evaluation mode there are no statistics of the batch.
    if (grad_input.memory != Memory::kValue || !has_pixels(grad_input.geometry) ||
        !call.arguments[kTrain].constant.toBool()) {
      continue;
    }
    add_ways_over_operands(rewriter, static_cast<int32_t>(i), "batch-norm-by-channels",
                           [](size_t over) -> Kernel {
                             return [over](Stack& stack) { run(stack, over, has_kernel); };
                           });
  }
}

}  // namespace reprise::runtime
