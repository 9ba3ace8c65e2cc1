#include "runtime/rewrite/reuse/over_operand.h"

#include <fmt/format.h>

#include <algorithm>

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kLeastBlocks = 8;

bool same_look(const TensorRef& a, const TensorRef& b, const Recording& recording) {
  return a.geometry == b.geometry && fills_storage(a, recording) && fills_storage(b, recording);
}

}  // namespace

int64_t blocks_in_cache(int64_t bytes) { return std::max(kLeastBlocks, bytes / kBlockBytes); }

std::pair<int64_t, int64_t> samples_of(int64_t k, int64_t parts, int64_t samples) {
  const int64_t first = samples * k / parts;
  return {first, samples * (k + 1) / parts - first};
}

at::Tensor part_of(const c10::IValue& operand, int64_t dimension, int64_t first, int64_t count) {
  const at::Tensor tensor = operand.isTensor() ? operand.toTensor() : at::Tensor();
  return tensor.defined() ? tensor.narrow(dimension, first, count) : tensor;
}

void add_variants_over_operands(Rewriter& rewriter, int32_t c, const char* kind,
                                const std::function<Kernel(size_t over)>& kernel) {
  const Recording& recording = rewriter.recording();
  const Call& call = recording.calls[c];
  const TensorRef& result = call.outputs[0][0];
  if (result.memory != Memory::kValue) return;
  for (const size_t over : {0, 1}) {
    const TensorRef& operand = call.arguments[over].tensors[0];
    const TensorRef& other = call.arguments[1 - over].tensors[0];
    if (!same_look(operand, result, recording) || other.geometry != operand.geometry ||
        rewriter.is_result(operand.index) || rewriter.readers(operand.index).back() > c) {
      continue;
    }
    Work work{.name = fmt::format("{} {}", call.name(), kind),
              .kernel = kernel(over),
              .arguments = call.arguments,
              .grad_mode = call.grad_mode,
              .overwrites = {{result.index, operand.index}}};
    for (size_t r = 1; r < call.outputs.size(); ++r) {
      const TensorRef& sum = call.outputs[r][0];
      if (sum.memory == Memory::kValue) work.made.push_back({r, 0, sum.index});
    }
    rewriter.add(CallVariant{
        c, rewriter.add_work(std::move(work)), {kind, call.op.schema().arguments()[over].name()}});
  }
}

}  // namespace reprise::runtime::internal::rewrite
