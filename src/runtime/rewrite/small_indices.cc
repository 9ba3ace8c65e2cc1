// Max pooling keeps for its backward where each maximum was: eight bytes of position in a plane that has a few
// thousand elements. Two bytes, or four, hold the same number. They are widened again for some samples at a time;
// planes do not depend on each other.
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <limits>

#include "rewrite/alternative.h"

namespace reprise::runtime {
namespace {

constexpr int64_t kBlocks = 16;

// Name and dimensions of a plane. The last argument is `indices`.
struct Pooling {
  const char* backward;
  size_t dimensions;
};

constexpr std::array kPoolings = {
    Pooling{"aten::max_pool2d_with_indices_backward", 2},
    Pooling{"aten::max_pool3d_with_indices_backward", 3},
    Pooling{"aten::adaptive_max_pool2d_backward", 2},
    Pooling{"aten::adaptive_max_pool3d_backward", 3},
};

enum Operand : size_t { kGradOutput, kInput };

const Pooling* pooling_of(const Call& call) {
  const auto found = std::find_if(kPoolings.begin(), kPoolings.end(), [&](const Pooling& pooling) {
    return call.op.operator_name().name == pooling.backward &&
           call.op.operator_name().overload_name.empty();
  });
  return found == kPoolings.end() ? nullptr : found;
}

Kernel narrowing(at::ScalarType type) {
  return [type](std::vector<c10::IValue>& stack) {
    at::Tensor narrow = stack[0].toTensor().to(type);
    stack.clear();
    stack.emplace_back(std::move(narrow));
  };
}

// `backward` is the overload that writes where it is told to, behind its other arguments.
Kernel widening(const c10::OperatorHandle& backward) {
  return [backward](std::vector<c10::IValue>& stack) {
    const at::Tensor gradient = stack[kGradOutput].toTensor(), input = stack[kInput].toTensor();
    const at::Tensor indices = stack.back().toTensor();
    at::Tensor result = at::empty_strided(input.sizes(), input.strides(), gradient.options());
    const int64_t samples = input.size(0), block = (samples + kBlocks - 1) / kBlocks;
    for (int64_t first = 0; first < samples; first += block) {
      const int64_t count = std::min(block, samples - first);
      std::vector<c10::IValue> part = stack;
      part[kGradOutput] = gradient.narrow(0, first, count);
      part[kInput] = input.narrow(0, first, count);
      part.back() = indices.narrow(0, first, count).to(at::kLong);
      part.emplace_back(result.narrow(0, first, count));
      backward.callBoxed(part);
    }
    stack.clear();
    stack.emplace_back(std::move(result));
  };
}

}  // namespace

at::ScalarType type_of_positions(const Geometry& input, size_t dimensions) {
  int64_t elements = 1;
  for (size_t d = input.sizes.size() - dimensions; d < input.sizes.size(); ++d) {
    elements *= input.sizes[d];
  }
  if (elements - 1 <= std::numeric_limits<int16_t>::max()) return at::kShort;
  if (elements - 1 <= std::numeric_limits<int32_t>::max()) return at::kInt;
  return at::kLong;
}

void small_indices(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    const auto c = static_cast<int32_t>(i);
    const Pooling* pooling = pooling_of(call);
    if (pooling == nullptr || call.phase != Phase::kBackward) continue;
    const TensorRef &indices = call.arguments.back().tensors[0], &result = call.outputs[0][0];
    const Geometry& input = call.arguments[kInput].tensors[0].geometry;
    if (input.sizes.size() != pooling->dimensions + 2 || input != result.geometry) continue;
    if (!covers_storage(indices, recording) || !covers_storage(result, recording)) continue;
    const int32_t behind = rewriter.last_forward_use(indices.index, c);
    const at::ScalarType type = type_of_positions(input, pooling->dimensions);
    if (behind < 0 || type == at::kLong || rewriter.is_result(indices.index)) continue;
    const int64_t before = recording.values[static_cast<size_t>(indices.index)].bytes;
    const int64_t bytes = before / static_cast<int64_t>(sizeof(int64_t)) *
                          static_cast<int64_t>(c10::elementSize(type));
    const auto op = c10::Dispatcher::singleton().findSchema({pooling->backward, "grad_input"});
    if (!rewriter.is_worthwhile(before - bytes) || !op) continue;

    TensorRef small = indices;
    small.index = rewriter.add_value(bytes);
    small.geometry.dtype = type;
    Work narrow{.name = call.name() + " narrows indices",
                .kernel = narrowing(type),
                .arguments = {{.kind = ArgumentKind::kTensor, .tensors = {indices}}},
                .made = {{0, 0, small.index}}};
    Work widen{.name = call.name() + " of small indices",
               .kernel = widening(*op),
               .arguments = call.arguments,
               .made = {{0, 0, result.index}}};
    widen.arguments.back().tensors = {small};
    Realization realization{.name = "small-indices", .calls = {c}};
    realization.pieces.push_back(
        {"narrow", behind, {rewriter.add_work(std::move(narrow))}, {"default"}});
    realization.pieces.push_back(
        {"of-small", c, {rewriter.add_work(std::move(widen))}, {"default"}});
    rewriter.add(std::move(realization));
  }
}

}  // namespace reprise::runtime
