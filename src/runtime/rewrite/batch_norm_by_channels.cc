// The backward of a batch norm takes each channel by itself, so that ATen's own kernel on copies of some
// channels at a time gives the same bits, and the result may go where one of the operands was. (An overload
// of the operator that writes in place does not exist: the generated one computes aside and copies.)
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include <algorithm>
#include <array>

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

// At least eight where that leaves each two channels: a single one looks like another memory format, for
// which ATen sums in another order.
int64_t count_blocks(int64_t channels, int64_t bytes) {
  return std::max<int64_t>(1, std::min(channels / 2, blocks_in_cache(bytes)));
}

// [grad_input, grad_weight, grad_bias]; grad_input lies in the operand at `over`.
void run(std::vector<c10::IValue>& stack, size_t over) {
  const at::Tensor grad = stack[kGradOutput].toTensor(), input = stack[kInput].toTensor();
  const at::Tensor result = stack[over].toTensor();
  const auto list = stack[kMask].toBoolList();
  const std::array<bool, 3> mask{list.get(0), list.get(1), list.get(2)};
  const int64_t channels = input.size(1);
  const int64_t blocks = count_blocks(channels, static_cast<int64_t>(input.nbytes()));
  std::array<at::Tensor, 2> sums;  // of weight and bias
  for (size_t s = 0; s < sums.size(); ++s) {
    if (mask[s + 1]) sums[s] = at::empty({channels}, stack[kMean].toTensor().options());
  }
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t first = channels * k / blocks, count = channels * (k + 1) / blocks - first;
    const auto [part, weight, bias] = at::native_batch_norm_backward(
        grad.narrow(1, first, count).contiguous(), input.narrow(1, first, count).contiguous(),
        part_of(stack[kWeight], 0, first, count), part_of(stack[kRunningMean], 0, first, count),
        part_of(stack[kRunningVariance], 0, first, count), part_of(stack[kMean], 0, first, count),
        part_of(stack[kInverse], 0, first, count), stack[kTrain].toBool(),
        stack[kEpsilon].toDouble(), mask);
    result.narrow(1, first, count).copy_(part);
    if (mask[1]) sums[0].narrow(0, first, count).copy_(weight);
    if (mask[2]) sums[1].narrow(0, first, count).copy_(bias);
  }
  stack.clear();
  stack.emplace_back(result);
  for (at::Tensor& sum : sums) stack.emplace_back(std::move(sum));
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
                             return [over](std::vector<c10::IValue>& stack) { run(stack, over); };
                           });
  }
}

}  // namespace reprise::runtime
