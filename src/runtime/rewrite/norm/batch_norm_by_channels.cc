// The backward of a batch norm treats each channel by itself. So the result may go where one of the
// operands was. (ATen has no overload that writes in place: the generated one computes elsewhere
// and copies.) A kernel of our own does that where it can. Elsewhere ATen's kernel runs on copies
// of some channels at a time.
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "runtime/rewrite/norm/batch_norm_kernel.h"
#include "runtime/rewrite/reuse/over_operand.h"

namespace reprise::runtime::internal::rewrite {

namespace {

using Stack = std::vector<c10::IValue>;
using Backward = BatchNormBackward;
using Gradients = std::array<at::Tensor, 3>;  // of input, weight and bias

// At least eight blocks, as long as each has two channels or more. A single channel looks like
// another memory format, for which ATen sums in another order.
int64_t count_blocks(int64_t channels, int64_t bytes) {
  return std::max<int64_t>(1, std::min(channels / 2, blocks_in_cache(bytes)));
}

Gradients backward_by_copies(const Stack& stack, const at::Tensor& result) {
  const at::Tensor grad = stack[Backward::kGradOutput].toTensor();
  const at::Tensor input = stack[Backward::kInput].toTensor();
  const auto list = stack[Backward::kMask].toBoolList();
  const std::array<bool, 3> mask{list.get(0), list.get(1), list.get(2)};
  const int64_t channels = input.size(1);
  const int64_t blocks = count_blocks(channels, static_cast<int64_t>(input.nbytes()));
  Gradients gradients{result};
  for (size_t g = 1; g < gradients.size(); ++g) {
    if (mask[g]) gradients[g] = at::empty({channels}, stack[Backward::kMean].toTensor().options());
  }
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t first = channels * k / blocks, count = channels * (k + 1) / blocks - first;
    const auto part = [&](Backward::Operand operand) {
      return part_of(stack[operand], 0, first, count);
    };
    const auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
        grad.narrow(1, first, count).contiguous(), input.narrow(1, first, count).contiguous(),
        part(Backward::kWeight), part(Backward::kRunningMean), part(Backward::kRunningVariance),
        part(Backward::kMean), part(Backward::kInverse), stack[Backward::kTrain].toBool(),
        stack[Backward::kEpsilon].toDouble(), mask);
    result.narrow(1, first, count).copy_(of_input);
    if (mask[1]) gradients[1].narrow(0, first, count).copy_(of_weight);
    if (mask[2]) gradients[2].narrow(0, first, count).copy_(of_bias);
  }
  return gradients;
}

// Results: [grad_input, grad_weight, grad_bias]. grad_input lies in the operand at `over`.
template <auto kBackward>
Kernel over_operand(size_t over) {
  return [over](Stack& stack) {
    Gradients gradients = kBackward(stack, stack[over].toTensor());
    stack.assign(std::make_move_iterator(gradients.begin()),
                 std::make_move_iterator(gradients.end()));
  };
}

// A single pixel has every memory format at once, and ATen then handles its channels together.
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
        !call.arguments[Backward::kTrain].constant.toBool()) {
      continue;
    }
    add_variants_over_operands(rewriter, static_cast<int32_t>(i), "batch-norm-by-channels",
                               fits_batch_norm_kernel(call, recording)
                                   ? over_operand<batch_norm_backward>
                                   : over_operand<backward_by_copies>);
  }
}

}  // namespace reprise::runtime::internal::rewrite
