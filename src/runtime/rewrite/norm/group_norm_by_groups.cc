// The backward of a group norm treats each group by itself. So ATen's own kernel gives the same
// bits on copies of some groups at a time, and the result may go where one of the operands was.
#include <ATen/ops/empty.h>
#include <ATen/ops/native_group_norm_backward.h>

#include <algorithm>
#include <array>

#include "runtime/rewrite/reuse/over_operand.h"

namespace reprise::runtime::internal::rewrite {

namespace {

enum Operand : size_t {
  kGradOutput,
  kInput,
  kMean,
  kInverse,
  kWeight,
  kBatch,
  kChannels,
  kPixels,
  kGroups,
  kMask
};

// Results: [grad_input, grad_weight, grad_bias]. grad_input lies in the operand at `over`.
void run(std::vector<c10::IValue>& stack, size_t over) {
  const at::Tensor grad = stack[kGradOutput].toTensor(), input = stack[kInput].toTensor();
  const at::Tensor result = stack[over].toTensor();
  const auto list = stack[kMask].toBoolList();
  const std::array<bool, 3> mask{list.get(0), list.get(1), list.get(2)};
  const int64_t batch = stack[kBatch].toInt(), channels = stack[kChannels].toInt();
  const int64_t pixels = stack[kPixels].toInt(), groups = stack[kGroups].toInt();
  const int64_t width = channels / groups;  // channels of a group
  const int64_t blocks = std::min(groups, blocks_in_cache(static_cast<int64_t>(input.nbytes())));
  std::array<at::Tensor, 2> sums;  // of weight and bias
  for (size_t s = 0; s < sums.size(); ++s) {
    if (mask[s + 1]) sums[s] = at::empty({channels}, stack[kWeight].toTensor().options());
  }
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t group = groups * k / blocks, count = groups * (k + 1) / blocks - group;
    const int64_t first = group * width, wide = count * width;
    const auto [part, weight, bias] = at::native_group_norm_backward(
        grad.narrow(1, first, wide).contiguous(), input.narrow(1, first, wide).contiguous(),
        part_of(stack[kMean], 1, group, count).contiguous(),
        part_of(stack[kInverse], 1, group, count).contiguous(),
        part_of(stack[kWeight], 0, first, wide), batch, wide, pixels, count, mask);
    result.narrow(1, first, wide).copy_(part);
    if (mask[1]) sums[0].narrow(0, first, wide).copy_(weight);
    if (mask[2]) sums[1].narrow(0, first, wide).copy_(bias);
  }
  stack.clear();
  stack.emplace_back(result);
  for (at::Tensor& sum : sums) stack.emplace_back(std::move(sum));
}

bool has_weight_for_sums(const Call& call) {
  return call.arguments[kWeight].kind == ArgumentKind::kTensor &&
         call.arguments[kWeight].tensors[0].memory != Memory::kNone;
}

}  // namespace

void group_norm_by_groups(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const Call& call = recording.calls[c];
    if (call.op.operator_name().name != "aten::native_group_norm_backward") continue;
    if (!has_weight_for_sums(call) || call.arguments[kGroups].constant.toInt() < 2) continue;
    add_variants_over_operands(
        rewriter, static_cast<int32_t>(c), "group-norm-by-groups", [](size_t over) -> Kernel {
          return [over](std::vector<c10::IValue>& stack) { run(stack, over); };
        });
  }
}

}  // namespace reprise::runtime::internal::rewrite
