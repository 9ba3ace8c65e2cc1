// Cross-entropy keeps the log-soft-max of the logits for its backward. Under autocast the logits
// have 16 bits an element, and the log-soft-max and its gradient have 32. This alternative keeps
// the logits alone. The forward makes the log-soft-max of some rows at a time, and keeps of each
// row the number that the loss picks. The backward makes these rows again, then their gradients,
// and casts them to the format of the logits, if need be over the logits. Rows do not depend on
// each other, so ATen's own kernels give the same bits on blocks of rows.
//
// The idea is that of P.-L. Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training",
// arXiv 2410.10989, section 3.2, where the gradients of the logits are written over them.
#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/nll_loss_backward.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/rewrite/loss/picked_loss.h"
#include "runtime/rewrite/pattern.h"

namespace reprise::runtime::internal::rewrite {

using step::ArgumentKind;
using step::Call;
using step::Kernel;
using step::Memory;
using step::TensorRef;
using step::Work;

namespace {

constexpr int64_t kLogitBlocks = 16;

struct LossConstants {
  int64_t reduction = at::Reduction::Mean, ignored = 0;
  bool half_to_float = false;                 // the log-soft-max casts by itself
  at::ScalarType type = at::kFloat;           // of the log-soft-max
  at::ScalarType gradient_type = at::kFloat;  // of its backward's result
};

// The operands of both kernels. The forward has the first two.
struct LossOperand {
  enum : size_t { kLogits, kTarget, kGradOutput, kTotalWeight };
};

// Calls `visit` with the log-soft-max of some rows after the other, and with their first row.
template <class Visit>
void for_each_log_softmax(const at::Tensor& logits, const LossConstants& constants, Visit&& visit) {
  const int64_t rows = logits.size(0), block = (rows + kLogitBlocks - 1) / kLogitBlocks;
  for (int64_t first = 0; first < rows; first += block) {
    at::Tensor part = logits.narrow(0, first, std::min(block, rows - first));
    if (!constants.half_to_float) part = part.to(constants.type);
    part = at::_log_softmax(part, 1, constants.half_to_float);
    visit(part, first);
  }
}

Kernel forward_kernel(const LossConstants& constants) {
  return [constants](std::vector<c10::IValue>& stack) {
    const at::Tensor logits = stack[LossOperand::kLogits].toTensor();
    PickedLoss sum(stack[LossOperand::kTarget].toTensor(), constants.reduction, constants.ignored,
                   logits.options().dtype(constants.type));
    for_each_log_softmax(logits, constants, [&](const at::Tensor& log, int64_t first) {
      sum.add(log, first);
    });
    auto [loss, total] = sum.finish();
    stack.clear();
    stack.emplace_back(std::move(loss));
    stack.emplace_back(std::move(total));
  };
}

Kernel backward_kernel(const LossConstants& constants, bool over) {
  return [constants, over](std::vector<c10::IValue>& stack) {
    const at::Tensor logits = stack[LossOperand::kLogits].toTensor();
    const at::Tensor target = stack[LossOperand::kTarget].toTensor();
    const at::Tensor grad = stack[LossOperand::kGradOutput].toTensor();
    const at::Tensor total = stack[LossOperand::kTotalWeight].toTensor();
    at::Tensor result =
        over ? logits : at::empty_strided(logits.sizes(), logits.strides(), logits.options());
    for_each_log_softmax(logits, constants, [&](const at::Tensor& log, int64_t first) {
      const int64_t count = log.size(0);
      at::Tensor rows = at::nll_loss_backward(grad, log, target.narrow(0, first, count), {},
                                              constants.reduction, constants.ignored, total);
      rows = at::_log_softmax_backward_data(rows, log, 1, constants.gradient_type);
      result.narrow(0, first, count).copy_(rows);
    });
    stack.clear();
    stack.emplace_back(std::move(result));
  };
}

// The calls of one occurrence. The casts are -1 where there are none.
struct LossCalls {
  int32_t cast = -1, softmax = -1, forward = -1, backward = -1, softmax_backward = -1,
          cast_back = -1;
  TensorRef logits = {}, gradient = {};
};

class LossFinder : private Pattern {
 public:
  using Pattern::Pattern;

  // Returns what belongs to the loss that is call c; absent if it does not fit.
  std::optional<LossCalls> loss_at(int32_t c) const {
    if (name(c) != "aten::nll_loss_forward" || has_weights(c) ||
        constant(c, "reduction").toInt() == at::Reduction::None ||
        argument(c, "target").geometry.dtype != at::kLong) {
      return std::nullopt;
    }
    LossCalls loss{.forward = c};
    const TensorRef& log = argument(c, "self");
    loss.softmax = maker(log, "aten::_log_softmax");
    if (loss.softmax < 0 || !is_matrix(log) ||
        constant(loss.softmax, "dim").toInt() != 1) {
      return std::nullopt;
    }
    const std::vector<int32_t>& log_readers = readers(log);
    if (log_readers.size() < 2) return std::nullopt;
    loss.softmax_backward = log_readers.back();
    find_logits(loss);
    if (!is_matrix(loss.logits) || !find_gradient(loss, log)) return std::nullopt;
    return only_for_loss(log, c, loss.backward, loss.softmax_backward) ? std::optional(loss)
                                                                       : std::nullopt;
  }

 private:
  bool is_matrix(const TensorRef& ref) const {
    return ref.geometry.sizes.size() == 2 && fills_storage(ref, recording());
  }
  bool has_weights(int32_t c) const {
    const step::Argument& weight = *argument_of(call(c), "weight");
    return weight.kind != ArgumentKind::kConstant && weight.tensors[0].memory != Memory::kNone;
  }

  void find_logits(LossCalls& loss) const {
    loss.logits = argument(loss.softmax, "self");
    const int32_t cast = maker(loss.logits, "aten::_to_copy");
    if (cast < 0 || !only_read_by(loss.logits, {loss.softmax})) return;
    loss.cast = cast;
    loss.logits = argument(cast, "self");
  }

  bool find_gradient(LossCalls& loss, const TensorRef& log) const {
    const int32_t c = loss.softmax_backward;
    if (name(c) != "aten::_log_softmax_backward_data" || argument(c, "output") != log) return false;
    const TensorRef& inner = argument(c, "grad_output");
    loss.backward = maker(inner, "aten::nll_loss_backward");
    if (loss.backward < 0 || inner.geometry != log.geometry || !only_read_by(inner, {c}) ||
        argument(loss.backward, "total_weight") != call(loss.forward).outputs[1][0] ||
        argument(loss.backward, "target") != argument(loss.forward, "target")) {
      return false;
    }
    loss.gradient = call(c).outputs[0][0];
    if (!is_matrix(loss.gradient)) return false;
    if (loss.gradient.geometry.dtype == loss.logits.geometry.dtype) return true;
    const std::vector<int32_t>& casts = readers(loss.gradient);
    if (casts.size() != 1 || is_result(loss.gradient) || name(casts[0]) != "aten::_to_copy") {
      return false;
    }
    loss.cast_back = casts[0];
    loss.gradient = call(loss.cast_back).outputs[0][0];
    return is_matrix(loss.gradient) && loss.gradient.geometry == loss.logits.geometry;
  }
};

}  // namespace

void cross_entropy_from_logits(Rewriter& rewriter) {
  const step::Recording& recording = rewriter.recording();
  const LossFinder finder(rewriter);
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const std::optional<LossCalls> loss = finder.loss_at(static_cast<int32_t>(i));
    if (!loss) continue;
    const auto call = [&](int32_t c) -> const Call& { return recording.calls[c]; };
    const Call &softmax = call(loss->softmax), &forward_call = call(loss->forward);
    const TensorRef& log = softmax.outputs[0][0];
    // Logits that the log-soft-max may be written over are not worth a second log-soft-max.
    const bool stay = rewriter.is_result(loss->logits.index) ||
                      rewriter.readers(loss->logits.index).size() > 1;
    if (log.geometry.dtype == loss->logits.geometry.dtype && !stay) continue;
    if (!rewriter.is_worthwhile(recording.values[log.index].bytes)) continue;
    const LossConstants constants{
        .reduction = argument_of(forward_call, "reduction")->constant.toInt(),
        .ignored = argument_of(forward_call, "ignore_index")->constant.toInt(),
        .half_to_float = argument_of(softmax, "half_to_float")->constant.toBool(),
        .type = log.geometry.dtype,
        .gradient_type =
            argument_of(call(loss->softmax_backward), "input_dtype")->constant.toScalarType()};

    const step::Argument& logits = loss->cast < 0 ? *argument_of(softmax, "self")
                                                  : *argument_of(call(loss->cast), "self");
    Work forward{.name = "cross_entropy",
                 .kernel = forward_kernel(constants),
                 .arguments = {logits, *argument_of(forward_call, "target")}};
    Work backward{.name = "cross_entropy_backward",
                  .kernel = backward_kernel(constants, false),
                  .arguments = forward.arguments};
    for (size_t r = 0; r < 2; ++r) {
      const TensorRef& made = forward_call.outputs[r][0];
      if (made.memory == Memory::kValue) forward.made.push_back({r, 0, made.index});
    }
    for (const char* operand : {"grad_output", "total_weight"}) {
      backward.arguments.push_back(*argument_of(call(loss->backward), operand));
    }
    Work over = backward;
    const int32_t result = loss->gradient.index;
    backward.made = {{0, 0, result}};
    over.kernel = backward_kernel(constants, true);
    over.overwrites = {{result, loss->logits.index}};
    if (rewriter.reads_written(forward) || rewriter.reads_written(backward)) continue;

    CallRealization realization{.name = "cross-entropy-from-logits", .calls = {}, .pieces = {}};
    for (const int32_t c : {loss->cast, loss->softmax, loss->forward, loss->backward,
                            loss->softmax_backward, loss->cast_back}) {
      if (c >= 0) realization.calls.push_back(c);
    }
    const int32_t last = realization.calls.back();
    CallRealization::Piece gradient{
        "gradient", last, {rewriter.add_work(std::move(backward))}, {"default"}};
    if (!rewriter.is_result(loss->logits.index) &&
        rewriter.readers(loss->logits.index).back() <= last) {
      gradient.works.push_back(rewriter.add_work(std::move(over)));
      gradient.names.emplace_back("in-place", "logits");
    }
    realization.pieces.push_back(
        {"loss", loss->forward, {rewriter.add_work(std::move(forward))}, {"default"}});
    realization.pieces.push_back(std::move(gradient));
    rewriter.add(std::move(realization));
  }
}

}  // namespace reprise::runtime::internal::rewrite
