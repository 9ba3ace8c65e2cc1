// The backward of hard tanh (ReLU6 is one) and of leaky ReLU needs to know on which side of a kink
// each element of the input lies. For that, autograd keeps the input, or a copy of it where the
// activation writes over it. The result tells the same. Between the kinks it equals the input;
// beyond them it is the kink itself, or it has the sign of the input. So the same kernel leaves the
// same bits when it reads the result. A NaN stays a NaN in its place, too. As a rule, the next
// layer keeps the result for its own backward anyway.
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/rewrite/pattern.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// A BackwardRow is a backward and its forward. The forward writes to a place of its own or over its
// input.
struct BackwardRow {
  const char* backward;
  const char* forward;
  std::vector<const char*> constants;  // arguments that must be equal in both
};

const std::vector<BackwardRow>& rows() {
  static const std::vector<BackwardRow> all = {
      {"aten::hardtanh_backward", "aten::hardtanh", {"min_val", "max_val"}},
      {"aten::leaky_relu_backward", "aten::leaky_relu", {"negative_slope"}},
  };
  return all;
}

class ByResult {
 public:
  explicit ByResult(Rewriter& rewriter)
      : rewriter_(rewriter),
        step_(rewriter),
        is_overwritten_(rewriter.recording().values.size(), false) {
    for (const StepValue& value : rewriter.recording().values) {
      if (value.previous >= 0) is_overwritten_[value.previous] = true;
    }
  }

  void look_at(int32_t c) {
    const Call& call = step_.call(c);
    if (call.phase != Phase::kBackward || call.outputs.size() != 1) return;
    for (const BackwardRow& row : rows()) {
      if (step_.name(c) == row.backward && tells(c)) add(c, row);
    }
  }

 private:
  double number(int32_t c, const char* which) const {
    return step_.constant(c, which).toScalar().toDouble();
  }

  // Returns whether the result lies on the same side of each kink as the input. Smaller types round
  // the kinks in hard tanh but not in its backward, so only float and double do.
  bool tells(int32_t c) const {
    const at::ScalarType type = step_.argument(c, "self").geometry.dtype;
    if (type != at::kFloat && type != at::kDouble) return false;
    if (argument_of(step_.call(c), "min_val") != nullptr) {
      return number(c, "min_val") < number(c, "max_val");
    }
    const double slope = number(c, "negative_slope");
    return std::isfinite(slope) && slope >= 0 && !step_.constant(c, "self_is_result").toBool();
  }

  bool has_constants(int32_t c, int32_t backward, const BackwardRow& row) const {
    return std::ranges::all_of(row.constants, [&](const char* which) {
      return number(c, which) == number(backward, which);
    });
  }

  // Returns the result of the activation of `input` to which the backward belongs. Returns nothing
  // if there is no such result, or if it is overwritten later.
  std::optional<TensorRef> result_of(const TensorRef& input, int32_t backward,
                                     const BackwardRow& row) const {
    const Recording& recording = step_.recording();
    for (const int32_t c : step_.readers(input)) {
      const std::string name = step_.name(c);
      if (name != row.forward && name != std::string(row.forward) + "_") continue;
      if (step_.call(c).phase != Phase::kForward || c > backward) continue;
      if (step_.argument(c, "self") != input || !has_constants(c, backward, row)) continue;
      const TensorRef& result = step_.call(c).outputs[0][0];
      if (result.memory != Memory::kValue || result.geometry != input.geometry) continue;
      if (is_overwritten_[result.index]) continue;
      if (covers_storage(result, recording)) return result;
    }
    return std::nullopt;
  }

  void add(int32_t c, const BackwardRow& row) {
    const TensorRef input = step_.argument(c, "self");
    if (input.memory != Memory::kValue || !covers_storage(input, step_.recording())) return;
    if (!rewriter_.is_worthwhile(step_.value(input).bytes)) return;
    CallRealization realization{.name = "backward-by-result", .calls = {c}};
    std::optional<TensorRef> result = result_of(input, c, row);
    const int32_t copy = step_.maker(input, "aten::clone");
    if (!result && copy >= 0) {
      const TensorRef& source = step_.argument(copy, "self");
      if (source.memory != Memory::kValue || source.geometry != input.geometry) return;
      result = result_of(source, c, row);
      if (step_.only_read_by(input, {c})) realization.calls = {copy, c};
    }
    if (!result) return;

    Work work = rewriter_.work(c);
    work.name += " by its result";
    for (Argument& argument : work.arguments) {
      if (argument.kind == ArgumentKind::kTensor && argument.tensors[0] == input) {
        argument.tensors[0] = *result;
      }
    }
    CallRealization::Piece piece{"by-result", c, {}, {"default"}, false, c};
    if (auto over = over_gradient(work, c)) {
      piece.works = {rewriter_.add_work(std::move(work)), rewriter_.add_work(*std::move(over))};
      piece.names.emplace_back("backward-by-result", "grad_output");
    } else {
      piece.works = {rewriter_.add_work(std::move(work))};
    }
    realization.pieces.push_back(std::move(piece));
    rewriter_.add(std::move(realization));
  }

  // Returns the same work, written over the gradient, if this call is the last reader of the
  // gradient.
  std::optional<Work> over_gradient(const Work& work, int32_t c) const {
    const TensorRef& made = step_.call(c).outputs[0][0];
    const TensorRef& gradient = step_.argument(c, "grad_output");
    const Recording& recording = step_.recording();
    if (step_.maker(made) != c || gradient.memory != Memory::kValue) return std::nullopt;
    if (gradient.geometry != made.geometry || !covers_storage(gradient, recording) ||
        !covers_storage(made, recording)) {
      return std::nullopt;
    }
    if (step_.is_result(gradient) || step_.readers(gradient).back() != c) return std::nullopt;
    const auto op = c10::Dispatcher::singleton().findSchema(
        {step_.call(c).op.operator_name().name, "grad_input"});
    if (!op) return std::nullopt;
    Work over = work;
    over.name += " in place";
    over.kernel = kernel_of(*op);
    over.arguments.push_back({.kind = ArgumentKind::kTensor, .tensors = {gradient}});
    over.made.clear();
    over.overwrites = {{made.index, gradient.index}};
    return over;
  }

  Rewriter& rewriter_;
  const Pattern step_;
  std::vector<bool> is_overwritten_;  // by value
};

}  // namespace

void backward_by_result(Rewriter& rewriter) {
  ByResult by_result(rewriter);
  const auto count = static_cast<int32_t>(rewriter.recording().calls.size());
  for (int32_t c = 0; c < count; ++c) by_result.look_at(c);
}

}  // namespace reprise::runtime::internal::rewrite
