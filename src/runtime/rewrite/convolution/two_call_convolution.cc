// Splits the backward of a convolution into two calls of the same operator. The first makes the
// gradients of weights and bias, the second makes the gradient of the input. oneDNN computes them
// apart anyway. The two workspaces are then not held at the same time. A value that only the first
// call reads may be freed before the second runs: the second asks the input only for its shape.
#include <array>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// Positions in output_mask and in the results.
constexpr size_t kInputGradient = 0, kWeightGradient = 1, kBiasGradient = 2;

Work part_of(const Call& call, const Recording& recording, int32_t c, std::array<bool, 3> mask,
             const char* shape_only) {
  Work work{.name = call.name(),
            .kernel = kernel_of(call.op),
            .arguments = call.arguments,
            .grad_mode = call.grad_mode};
  const auto& formals = call.op.schema().arguments();
  for (size_t a = 0; a < work.arguments.size(); ++a) {
    if (formals[a].name() == shape_only) work.arguments[a].shape_only = true;
    if (formals[a].name() != "output_mask") continue;
    c10::List<bool> wanted;
    for (const bool part : mask) wanted.push_back(part);
    work.arguments[a].constant = std::move(wanted);
  }
  for (size_t r = 0; r < mask.size(); ++r) {
    const TensorRef& ref = call.outputs[r][0];
    if (!mask[r] || ref.memory != Memory::kValue) continue;
    if (recording.values[ref.index].maker == c) {
      work.made.push_back({r, 0, ref.index});
    }
  }
  return work;
}

}  // namespace

void two_call_convolution(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  if (!recording.device.is_cpu()) return;  // only the host has reserved address space
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    if (call.op.operator_name().name != "aten::convolution_backward") continue;
    const Argument* mask = argument_of(call, "output_mask");
    if (mask == nullptr || !mask->constant.isBoolList()) continue;
    const auto wanted = mask->constant.toBoolList();
    if (wanted.size() != 3 || !wanted.get(kInputGradient) || !wanted.get(kWeightGradient)) continue;
    const auto c = static_cast<int32_t>(i);
    Work weights = part_of(call, recording, c, {false, true, wanted.get(kBiasGradient)}, "weight");
    Work input = part_of(call, recording, c, {true, false, false}, "input");
    if (weights.made.empty() || input.made.size() != 1) continue;
    CallRealization two{.name = "two-call-convolution", .calls = {c}};
    two.pieces.push_back({"weights", c, {rewriter.add_work(std::move(weights))}, {"default"}});
    two.pieces.push_back({"input", c, {rewriter.add_work(std::move(input))}, {"default"}});
    rewriter.add(std::move(two));
  }
}

}  // namespace reprise::runtime::internal::rewrite
