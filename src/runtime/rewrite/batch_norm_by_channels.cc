// The backward of a batch norm takes each channel by itself, so that ATen's own kernel on copies of some
// channels at a time gives the same bits, and the result may go where one of the operands was. (An overload
// of the operator that writes in place does not exist: the generated one computes aside and copies.)
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rewrite/alternative.h"

namespace reprise::runtime {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;  // of an operand: three blocks stay in the cache

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
  const int64_t most = channels / 2;
  return std::max<int64_t>(1, std::min(most, std::max<int64_t>(8, bytes / kBlockBytes)));
}

at::Tensor some(const c10::IValue& operand, int64_t first, int64_t count) {
  const at::Tensor tensor = operand.isTensor() ? operand.toTensor() : at::Tensor();
  return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
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
        some(stack[kWeight], first, count), some(stack[kRunningMean], first, count),
        some(stack[kRunningVariance], first, count), some(stack[kMean], first, count),
        some(stack[kInverse], first, count), stack[kTrain].toBool(), stack[kEpsilon].toDouble(),
        mask);
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

bool same_look(const TensorRef& a, const TensorRef& b, const Recording& recording) {
  return a.geometry == b.geometry && fills_storage(a, recording) && fills_storage(b, recording);
}

}  // namespace

void batch_norm_by_channels(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    if (call.op.operator_name().name != "aten::native_batch_norm_backward") continue;
    const auto c = static_cast<int32_t>(i);
    const TensorRef& grad_input = call.outputs[0][0];
    const Argument* save_mean = argument_of(call, "save_mean");
    if (grad_input.memory != Memory::kValue || !has_pixels(grad_input.geometry) ||
        save_mean->tensors[0].memory == Memory::kNone) {
      continue;
    }
    for (const size_t over : {kGradOutput, kInput}) {
      const TensorRef& other = call.arguments[over == kInput ? kGradOutput : kInput].tensors[0];
      const TensorRef& operand = call.arguments[over].tensors[0];
      if (!same_look(operand, grad_input, recording) || other.geometry != operand.geometry ||
          rewriter.is_result(operand.index) || rewriter.readers(operand.index).back() > c) {
        continue;
      }
      Work work{.name = call.name() + " by channels",
                .kernel = [over](std::vector<c10::IValue>& stack) { run(stack, over); },
                .arguments = call.arguments,
                .grad_mode = call.grad_mode,
                .overwrites = {{grad_input.index, operand.index}}};
      for (size_t r = 1; r < call.outputs.size(); ++r) {
        const TensorRef& sum = call.outputs[r][0];
        if (sum.memory == Memory::kValue) work.made.push_back({r, 0, sum.index});
      }
      const char* name = over == kInput ? "input" : "grad_output";
      rewriter.add(OtherWay{c, rewriter.add_work(std::move(work)),
                            fmt::format("batch-norm-by-channels/{}", name)});
    }
  }
}

}  // namespace reprise::runtime
