// The backward of cross-entropy consists of two ops. The first makes the gradient of the
// log-soft-max' result, which is nearly all zeros. The second makes the gradient of the logits from
// it. Each gradient is as large as the logits. This alternative joins both ops and runs them some
// rows at a time. The first gradient then exists for these rows only, and the second may be written
// over the log-soft-max. Rows do not depend on each other, so ATen's own kernels give the same bits
// on blocks of rows.
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/nll_loss2d_backward.h>
#include <ATen/ops/nll_loss_backward.h>

#include <algorithm>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr int64_t kBlocks = 16;

struct Constants {
  bool pixels = false;  // nll_loss2d, with a class for each pixel
  int64_t reduction = 0, ignored = 0, dim = 1;
  at::ScalarType type = at::kFloat;
};

enum Operand : size_t { kGradOutput, kTarget, kWeight, kTotalWeight, kLogSoftmax, kOperands };

at::Tensor run(const std::vector<c10::IValue>& stack, const Constants& constants, bool over) {
  const at::Tensor grad = stack[kGradOutput].toTensor(), target = stack[kTarget].toTensor();
  const at::Tensor total = stack[kTotalWeight].toTensor(), log = stack[kLogSoftmax].toTensor();
  std::optional<at::Tensor> weight;
  if (stack[kWeight].isTensor() && stack[kWeight].toTensor().defined()) {
    weight = stack[kWeight].toTensor();
  }
  at::Tensor result = over ? log : at::empty_strided(log.sizes(), log.strides(), log.options());
  const int64_t rows = log.size(0), block = (rows + kBlocks - 1) / kBlocks;
  const auto nll = constants.pixels ? at::nll_loss2d_backward : at::nll_loss_backward;
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t count = std::min(block, rows - first);
    const at::Tensor part = log.narrow(0, first, count);
    const at::Tensor above = grad.dim() == 0 ? grad : grad.narrow(0, first, count);
    const at::Tensor inner = nll(above, part, target.narrow(0, first, count), weight,
                                 constants.reduction, constants.ignored, total);
    at::Tensor out = result.narrow(0, first, count);
    at::_log_softmax_backward_data_out(out, inner, part, constants.dim, constants.type);
  }
  return result;
}

Kernel kernel(const Constants& constants, bool over) {
  return [constants, over](std::vector<c10::IValue>& stack) {
    at::Tensor result = run(stack, constants, over);
    stack.clear();
    stack.emplace_back(std::move(result));
  };
}

// Returns the backward of the log-soft-max, if it alone reads the result of this call; else null.
const Call* backward_of_log_softmax(const Rewriter& rewriter, const Call& nll, int32_t* position) {
  const Recording& recording = rewriter.recording();
  const TensorRef& made = nll.outputs[0][0];
  if (made.memory != Memory::kValue || !fills_storage(made, recording)) return nullptr;
  const auto& readers = rewriter.readers(made.index);
  if (readers.size() != 1 || rewriter.is_result(made.index)) return nullptr;
  const Call& next = recording.calls[readers[0]];
  if (next.op.operator_name().name != "aten::_log_softmax_backward_data") return nullptr;
  const Argument* grad = argument_of(next, "grad_output");
  const Argument* output = argument_of(next, "output");
  if (grad->tensors[0] != made || !fills_storage(output->tensors[0], recording)) return nullptr;
  const TensorRef& result = next.outputs[0][0];
  if (output->tensors[0].geometry != made.geometry || result.geometry != made.geometry ||
      !fills_storage(result, recording)) {
    return nullptr;
  }
  *position = readers[0];
  return &next;
}

}  // namespace

void cross_entropy_by_rows(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& nll = recording.calls[i];
    const std::string& name = nll.op.operator_name().name;
    Constants constants{.pixels = name == "aten::nll_loss2d_backward"};
    if (!constants.pixels && name != "aten::nll_loss_backward") continue;
    int32_t position = -1;
    const Call* softmax = backward_of_log_softmax(rewriter, nll, &position);
    if (softmax == nullptr || nll.outputs[0][0].geometry.sizes.size() < 2) continue;
    constants.dim = argument_of(*softmax, "dim")->constant.toInt();
    if (constants.dim == 0) continue;
    constants.type = argument_of(*softmax, "input_dtype")->constant.toScalarType();
    constants.reduction = argument_of(nll, "reduction")->constant.toInt();
    constants.ignored = argument_of(nll, "ignore_index")->constant.toInt();

    const TensorRef log = argument_of(*softmax, "output")->tensors[0];
    const int32_t result = softmax->outputs[0][0].index;
    Work fresh{.name = "cross_entropy_backward",
               .kernel = kernel(constants, false),
               .arguments = {*argument_of(nll, "grad_output"), *argument_of(nll, "target"),
                             *argument_of(nll, "weight"), *argument_of(nll, "total_weight"),
                             *argument_of(*softmax, "output")},
               .grad_mode = nll.grad_mode,
               .made = {{0, 0, result}}};
    Work over = fresh;
    over.kernel = kernel(constants, true);
    over.made.clear();
    over.overwrites = {{result, log.index}};
    CallRealization rows{.name = "cross-entropy-by-rows",
                         .calls = {static_cast<int32_t>(i), position}};
    CallRealization::Piece piece{
        "rows", position, {rewriter.add_work(std::move(fresh))}, {"default"}};
    if (!rewriter.is_result(log.index) && rewriter.readers(log.index).back() == position) {
      piece.works.push_back(rewriter.add_work(std::move(over)));
      piece.names.emplace_back("in-place", "output");
    }
    rows.pieces.push_back(std::move(piece));
    rewriter.add(std::move(rows));
  }
}

}  // namespace reprise::runtime::internal::rewrite
