// Splits a batch norm into two ops: one computes the statistics of the batch, once, and the other
// normalises by them. Where the result does not stay, only the second op runs again, in a fifth of
// the time of the whole batch norm.
//
// The split is the "fission" of W. Jung et al., "Restructuring Batch Normalization to Accelerate
// CNN Training", MLSys 2019 (arXiv 1807.01702), section 3. The bits are ATen's.
#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/norm/batch_norm_kernel.h"

namespace reprise::runtime::internal::rewrite {

namespace {

Argument as_argument(const TensorRef& ref) {
  return {.kind = ArgumentKind::kTensor, .tensors = {ref}};
}

bool makes(int32_t c, const TensorRef& ref, const Recording& recording) {
  return ref.memory == Memory::kValue && recording.values[ref.index].maker == c;
}

}  // namespace

void two_step_batch_norm(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    const auto c = static_cast<int32_t>(i);
    if (call.op.operator_name().name != "aten::native_batch_norm") continue;
    if (!fits_batch_norm_kernel(call, recording)) continue;
    const TensorRef &output = call.outputs[0][0], &mean = call.outputs[1][0],
                    &inverse = call.outputs[2][0];
    if (!makes(c, output, recording) || !makes(c, mean, recording) ||
        !makes(c, inverse, recording)) {
      continue;
    }
    Work statistics{.name = "batch_norm.statistics",
                    .kernel = batch_norm_statistics,
                    .arguments = call.arguments,
                    .made = {{0, 0, mean.index}, {1, 0, inverse.index}},
                    .effects = call.effects};
    statistics.arguments[BatchNorm::kWeight] = statistics.arguments[BatchNorm::kBias] = Argument{};
    Work normalise{.name = "batch_norm.normalise",
                   .kernel = batch_norm_normalise,
                   .arguments = call.arguments,
                   .made = {{0, 0, output.index}}};
    normalise.arguments[BatchNorm::kRunningMean] = Argument{};
    normalise.arguments[BatchNorm::kRunningVariance] = Argument{};
    normalise.arguments.push_back(as_argument(mean));
    normalise.arguments.push_back(as_argument(inverse));
    if (rewriter.reads_written(normalise)) continue;
    CallRealization two{.name = "two-step-batch-norm", .calls = {c}};
    two.pieces.push_back(
        {"statistics", c, {rewriter.add_work(std::move(statistics))}, {"default"}});
    two.pieces.push_back({"normalise", c, {rewriter.add_work(std::move(normalise))}, {"default"}});
    rewriter.add(std::move(two));
  }
}

}  // namespace reprise::runtime::internal::rewrite
