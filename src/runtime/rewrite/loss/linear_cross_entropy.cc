// Runs a linear layer and the cross-entropy behind it, the head of a language model, some rows at a
// time. The logits, their log-soft-max and both gradients have rows x classes elements, and are
// often the largest tensors of the step. In blocks of rows none of them exists as a whole. The loss
// is a sum over the blocks. The backward computes the logits of a block again (one more product),
// then their gradient, and then the part that the block adds to the gradients of input, weight and
// bias. Where no call in between reads the loss, forward and backward of a block run together, at
// the place of the backward, and nothing is computed twice.
//
// The idea is that of P.-L. Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training",
// arXiv 2410.10989, section 3.2, where the forward pass makes the gradients.
//
// Gradients of weights and biases are added up over the blocks. Where a trial finds blocks with the
// bits of the whole (row_trial.h), the realization is bitwise. Then the loss is summed at the end,
// by ATen's own loss of a matrix with one column: of each row it has the number that the loss picks.
// Elsewhere, sums over rows are sums of sums over blocks, and round differently.
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/rewrite/loss/linear_cross_entropy_kernel.h"
#include "runtime/rewrite/pattern.h"
#include "runtime/rewrite/rows/row_trial.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr int64_t kLossBlocks = 16, kLeastLossRows = 128;  // fewer rows make slow products

// The calls of one occurrence. `uses` are the products of the gradient of the logits: the gradient
// times the other operand (kProduct); the gradient transposed, times rows of the other operand
// (kWeight); and the sum of the gradient over rows (kSum), which has no other operand.
struct Head {
  struct Use {
    RowKind product;
    int32_t call;
    std::optional<TensorRef> other;
  };

  int32_t linear = -1, softmax = -1, loss = -1, loss_backward = -1, softmax_backward = -1;
  std::vector<Use> uses = {};
};

class Finder : private Pattern {
 public:
  using Pattern::Pattern;

  // Returns the head whose loss is call c; absent if there is none.
  std::optional<Head> head_at(int32_t c) const {
    if (name(c) != "aten::nll_loss_forward" || is_none(reduction(c))) return std::nullopt;
    Head head{.loss = c};
    const TensorRef& log = argument(c, "self");
    head.softmax = maker(log, "aten::_log_softmax");
    if (head.softmax < 0 || !is_matrix(log) || constant(head.softmax, "dim").toInt() != 1 ||
        constant(head.softmax, "half_to_float").toBool()) {
      return std::nullopt;
    }
    const TensorRef& logits = argument(head.softmax, "self");
    head.linear = maker(logits, "aten::mm");
    if (head.linear < 0) head.linear = maker(logits, "aten::addmm");
    // Sums over blocks would lose the few bits of smaller types.
    const at::ScalarType type = log.geometry.dtype;
    if (head.linear < 0 || logits.geometry != log.geometry || !is_linear(head.linear) ||
        (type != at::kFloat && type != at::kDouble)) {
      return std::nullopt;
    }
    const auto& log_readers = readers(log);
    if (!only_read_by(logits, {head.softmax}) || log_readers.size() < 2) return std::nullopt;
    head.softmax_backward = log_readers.back();
    if (!find_backward(head, log)) return std::nullopt;
    return only_for_loss(log, c, head.loss_backward, head.softmax_backward) ? std::optional(head)
                                                                            : std::nullopt;
  }

  // Returns whether no call reads the loss, or the total weight, before the last gradient is made.
  bool waits(const Head& head) const {
    const TensorRef &loss = call(head.loss).outputs[0][0], &total = call(head.loss).outputs[1][0];
    const std::vector<int32_t>& later = readers(loss);
    return loss.memory == Memory::kValue && only_read_by(total, {head.loss_backward}) &&
           std::all_of(later.begin(), later.end(),
                       [&](int32_t c) { return c > head.uses.back().call; });
  }

 private:
  int64_t reduction(int32_t c) const { return constant(c, "reduction").toInt(); }
  static bool is_none(int64_t reduction) { return reduction == at::Reduction::None; }

  bool is_matrix(const TensorRef& ref) const {
    return ref.geometry.sizes.size() == 2 && fills_storage(ref, recording());
  }

  // Returns whether the call is a plain product, perhaps with a bias: beta and alpha must be 1.
  bool is_linear(int32_t c) const {
    if (name(c) == "aten::mm") return true;
    return constant(c, "beta").toScalar().equal(1) && constant(c, "alpha").toScalar().equal(1) &&
           argument(c, "self").geometry.sizes.size() == 1;
  }

  bool find_backward(Head& head, const TensorRef& log) const {
    const int32_t c = head.softmax_backward;
    if (name(c) != "aten::_log_softmax_backward_data" || argument(c, "output") != log) return false;
    const TensorRef& inner = argument(c, "grad_output");
    head.loss_backward = maker(inner, "aten::nll_loss_backward");
    if (head.loss_backward < 0 || inner.geometry != log.geometry || !only_read_by(inner, {c}) ||
        argument(head.loss_backward, "total_weight") != call(head.loss).outputs[1][0] ||
        argument(head.loss_backward, "target") != argument(head.loss, "target")) {
      return false;
    }
    const TensorRef& gradient = call(c).outputs[0][0];
    if (gradient.memory != Memory::kValue || gradient.geometry != log.geometry ||
        is_result(gradient)) {
      return false;
    }
    for (const int32_t reader : readers(gradient)) {
      std::optional<Head::Use> use = use_of(reader, gradient);
      if (!use) return false;
      head.uses.push_back(std::move(*use));
    }
    return !head.uses.empty();
  }

  std::optional<Head::Use> use_of(int32_t c, const TensorRef& gradient) const {
    const TensorRef& made = call(c).outputs[0][0];
    if (made.memory != Memory::kValue || maker(made) != c || !is_matrix(made)) {
      return std::nullopt;
    }
    if (call(c).name() == "sum.dim_IntList" && argument(c, "self") == gradient &&
        made.geometry.sizes[0] == 1 && constant(c, "dim").isIntList() &&
        constant(c, "dim").toIntVector() == std::vector<int64_t>{0} &&
        made.geometry.dtype == gradient.geometry.dtype) {
      return Head::Use{RowKind::kSum, c, std::nullopt};
    }
    if (name(c) != "aten::mm") return std::nullopt;
    const TensorRef &left = argument(c, "self"), &right = argument(c, "mat2");
    if (right.memory == Memory::kValue && right.index == gradient.index) return std::nullopt;
    if (left == gradient) return Head::Use{RowKind::kProduct, c, right};
    TensorRef transposed = gradient;
    std::swap(transposed.geometry.sizes[0], transposed.geometry.sizes[1]);
    std::swap(transposed.geometry.strides[0], transposed.geometry.strides[1]);
    if (left == transposed) return Head::Use{RowKind::kWeight, c, right};
    return std::nullopt;
  }
};

CallRealization::Piece piece_of(Rewriter& rewriter, const char* name, int32_t after, Work work) {
  return {name, after, {rewriter.add_work(std::move(work))}, {"default"}};
}

// The blocks of the head, and whether they leave the bits of the whole.
std::pair<RowBlocks, bool> blocks_of(const Head& head, const Recording& recording,
                                     RowCalls& row_calls, RowTrials& trials) {
  const Call& linear = recording.calls[head.linear];
  const int64_t rows = linear.outputs[0][0].geometry.sizes[0];
  const Call& loss = recording.calls[head.loss];
  const bool has_weights = argument_of(loss, "weight")->kind != ArgumentKind::kConstant &&
                           argument_of(loss, "weight")->tensors[0].memory != Memory::kNone;
  const bool is_long = argument_of(loss, "target")->tensors[0].geometry.dtype == at::kLong;
  std::vector<int32_t> positions{head.linear};
  for (const Head::Use& use : head.uses) positions.push_back(use.call);
  std::vector<RowCall> calls;
  for (const int32_t c : positions) {
    if (auto call = row_calls.at(c, rows)) calls.push_back(*std::move(call));
  }
  // Up to this number of rows their count is exact in float32.
  constexpr int64_t kMostRows = 1 << 24;
  if (!has_weights && is_long && calls.size() == positions.size() && rows < kMostRows) {
    const std::optional<RowBlocks> blocks = find_blocks(calls, rows, trials);
    if (blocks) return {*blocks, true};
  }
  const int64_t block = std::max((rows + kLossBlocks - 1) / kLossBlocks, kLeastLossRows);
  return {{rows, block, block}, false};
}

}  // namespace

void linear_cross_entropy(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  const Finder finder(rewriter);
  RowCalls row_calls(recording);
  RowTrials trials(recording);
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const auto c = static_cast<int32_t>(i);
    const std::optional<Head> head = finder.head_at(c);
    if (!head) continue;
    const auto call = [&](int32_t k) -> const Call& { return recording.calls[k]; };
    const Call &linear = call(head->linear), &loss = call(head->loss);
    const TensorRef& logits = linear.outputs[0][0];
    if (!rewriter.is_worthwhile(recording.values[logits.index].bytes)) continue;

    const bool has_bias = linear.op.operator_name().name == "aten::addmm";
    HeadConstants constants{.reduction = argument_of(loss, "reduction")->constant.toInt(),
                            .ignored = argument_of(loss, "ignore_index")->constant.toInt(),
                            .has_bias = has_bias};
    std::tie(constants.blocks, constants.same_bits) =
        blocks_of(*head, recording, row_calls, trials);
    const Argument nothing{.kind = ArgumentKind::kTensor, .tensors = {TensorRef{}}};
    Work forward{.name = "linear_cross_entropy",
                 .kernel = {},
                 .arguments = {*argument_of(linear, has_bias ? "mat1" : "self"),
                               *argument_of(linear, "mat2"),
                               has_bias ? *argument_of(linear, "self") : nothing,
                               *argument_of(loss, "target"), *argument_of(loss, "weight")}};
    Work backward = forward;
    for (size_t r = 0; r < 2; ++r) {
      const TensorRef& made = loss.outputs[r][0];
      if (made.memory == Memory::kValue) forward.made.push_back({r, 0, made.index});
    }
    backward.name += "_backward";
    const Call& loss_backward = call(head->loss_backward);
    backward.arguments.push_back(*argument_of(loss_backward, "grad_output"));
    backward.arguments.push_back(*argument_of(loss_backward, "total_weight"));
    CallRealization realization{
        .name = "linear-cross-entropy-by-rows",
        .calls = {head->linear, head->softmax, head->loss, head->loss_backward,
                  head->softmax_backward},
        .pieces = {},
        .exactness = constants.same_bits ? Exactness::kBitwise : Exactness::kRounding};
    for (size_t k = 0; k < head->uses.size(); ++k) {
      const Head::Use& use = head->uses[k];
      constants.products.push_back(use.product);
      backward.arguments.push_back(
          use.other ? Argument{.kind = ArgumentKind::kTensor, .tensors = {*use.other}} : nothing);
      backward.made.push_back({k, 0, call(use.call).outputs[0][0].index});
      realization.calls.push_back(use.call);
    }
    forward.kernel = [constants](std::vector<c10::IValue>& stack) { run_head(stack, constants); };
    backward.kernel = [constants](std::vector<c10::IValue>& stack) {
      run_head_backward(stack, constants);
    };
    if (rewriter.reads_written(forward) || rewriter.reads_written(backward)) continue;
    if (finder.waits(*head)) {
      Work both = backward;
      both.name += "_and_forward";
      both.arguments[HeadOperand::kTotalWeight] = nothing;
      both.made.push_back({head->uses.size(), 0, loss.outputs[0][0].index});
      CallRealization at_once = realization;
      at_once.pieces.push_back(
          piece_of(rewriter, "at-once", head->uses.back().call, std::move(both)));
      rewriter.add(std::move(at_once));
    }
    realization.pieces.push_back(piece_of(rewriter, "loss", c, std::move(forward)));
    realization.pieces.push_back(
        piece_of(rewriter, "gradients", head->uses.back().call, std::move(backward)));
    rewriter.add(std::move(realization));
  }
}

}  // namespace reprise::runtime::internal::rewrite
