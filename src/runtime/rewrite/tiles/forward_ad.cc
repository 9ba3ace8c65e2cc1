// Nested Forward-AD. C. Guo et al., "Nested Forward Automatic Differentiation for Memory-Efficient
// Deep Neural Network Training", arXiv 2209.10778: within reverse mode, an element-wise function
// y = f(x) is differentiated in forward mode. Its derivative h = f'(x) is computed while x is there
// and is the only thing that is kept (section III); the backward is one product, dx = h * dy.
//
// The paper has a rule for the derivative of each operator. Here the derivative comes from the
// recorded backward: it is linear in dy and acts on each element alone, so that with dy = 1 it
// yields h. With k operands x_1 .. x_k there are k partial derivatives. The backward runs on ones in
// the forward's tile, so that nothing but h leaves the tile. The product h * dy is rounded in
// another order than the backward's products: exactness `rounding`.
//
// A backward is taken apart as follows, call by call:
// - `saved`: does not depend on a gradient. It runs in the forward.
// - `pure`: depends on gradients alone (a sum of two of them). It runs in the backward. The one
//   that is combined with something saved is dy.
// - `core`: is linear in dy, with saved factors. It runs in the forward, on ones.
// - `behind`: adds something to what the core yields. It runs in the backward, on h * dy.
#include "runtime/rewrite/tiles/forward_ad.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace reprise::runtime::internal::rewrite {

using step::External;

namespace {

// With more derivatives than this nothing would be saved.
constexpr size_t kMostKept = 3;

enum class GroupPart : uint8_t { kSaved, kPure, kCore, kBehind };

class Differentiation {
 public:
  Differentiation(const Rewriter& rewriter, const TileGroups& groups, const TileChoice& choice)
      : rewriter_(rewriter), recording_(rewriter.recording()), groups_(groups), choice_(choice) {}

  // Returns why the backward is no product with a derivative; empty if it is one.
  std::string take_apart() {
    if (choice_.forward.size() != 1 || choice_.backward.size() != 1) {
      return "it is not one group of the forward and one of the backward";
    }
    for (const int32_t c : choice_.forward[0].calls)
      part_of_value_[value_of(c)] = GroupPart::kSaved;
    for (const int32_t c : choice_.backward[0].calls) {
      std::string refusal = place(c);
      if (!refusal.empty()) return refusal;
    }
    if (gradient_.memory == Memory::kNone) return "nothing saved is combined with a gradient";
    return find_kept();
  }

  const std::vector<int32_t>& calls(GroupPart part) const {
    return calls_[static_cast<size_t>(part)];
  }
  const std::vector<int32_t>& kept() const { return kept_; }
  const TensorRef& gradient() const { return gradient_; }

 private:
  int32_t value_of(int32_t c) const { return groups_.element_call(c).result.index; }

  GroupPart part_of(const TensorRef& ref) const {
    if (ref.memory != Memory::kValue) return GroupPart::kSaved;
    const auto known = part_of_value_.find(ref.index);
    if (known != part_of_value_.end()) return known->second;
    const int32_t maker = recording_.values[ref.index].maker;
    const bool in_backward = recording_.calls[maker].phase == Phase::kBackward;
    return in_backward ? GroupPart::kPure : GroupPart::kSaved;
  }

  std::string place(int32_t c) {
    const ElementCall& call = groups_.element_call(c);
    std::set<GroupPart> parts;
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      for (const TensorRef& ref : call.arguments[a].tensors) {
        if (!is_known_number(ref)) parts.insert(part_of(ref));
      }
    }
    GroupPart part = GroupPart::kSaved;
    if (parts.contains(GroupPart::kBehind) ||
        (parts.contains(GroupPart::kCore) && parts.contains(GroupPart::kPure) && !only_dy(call))) {
      if (parts.contains(GroupPart::kSaved)) {
        return fmt::format("{} combines something saved with a sum of gradients", call.name());
      }
      part = GroupPart::kBehind;
    } else if (parts.contains(GroupPart::kCore) ||
               (parts.contains(GroupPart::kPure) && parts.contains(GroupPart::kSaved))) {
      part = GroupPart::kCore;
      std::string refusal = find_dy(call);
      if (refusal.empty()) refusal = not_linear(call);
      if (!refusal.empty()) return refusal;
    } else if (parts.contains(GroupPart::kPure)) {
      part = GroupPart::kPure;
    }
    part_of_value_[value_of(c)] = part;
    calls_[static_cast<size_t>(part)].push_back(c);
    return "";
  }

  // A number of the caller's program: it belongs to no part.
  bool is_known_number(const TensorRef& ref) const {
    if (ref.memory != Memory::kExternal) return false;
    const External& external = recording_.externals[ref.index];
    return external.is_constant && ref.geometry.sizes.empty();
  }

  bool only_dy(const ElementCall& call) const {
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (!is_known_number(ref) && part_of(ref) == GroupPart::kPure && ref != gradient_)
          return false;
      }
    }
    return true;
  }

  // All gradients that meet something saved must be the same one.
  std::string find_dy(const ElementCall& call) {
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      for (const TensorRef& ref : call.arguments[a].tensors) {
        if (is_known_number(ref) || part_of(ref) != GroupPart::kPure) continue;
        if (!call.is_whole(a)) return "a gradient is broadcast, or lies in another order";
        if (ref.geometry.dtype != call.result.geometry.dtype) {
          return "a gradient is converted to another type";
        }
        if (gradient_.memory == Memory::kNone) gradient_ = ref;
        if (gradient_.index != ref.index || gradient_.geometry.offset != ref.geometry.offset) {
          return "it depends on two gradients";
        }
      }
    }
    return "";
  }

  // Returns why the call is not linear in the gradient; empty if it is.
  std::string not_linear(const ElementCall& call) const {
    const std::string name = call.name();
    const auto& formals = call.op->schema().arguments();
    std::vector<size_t> linear;  // arguments that depend on the gradient
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      for (const TensorRef& ref : call.arguments[a].tensors) {
        if (is_known_number(ref)) continue;
        const GroupPart part = part_of(ref);
        if (part == GroupPart::kCore || part == GroupPart::kPure) linear.push_back(a);
      }
    }
    const auto refuse = [&] { return fmt::format("{} is not linear in the gradient", name); };
    const auto is_linear = [&](size_t a) { return std::ranges::find(linear, a) != linear.end(); };
    if (name == "mul") return linear.size() == 1 ? "" : refuse();
    if (name == "copy_" && call.type != call.result.geometry.dtype) {
      return "a gradient is converted to another type";
    }
    if (name == "neg" || name == "copy_") return "";
    if (name == "add" || name == "sub") return linear.size() == 2 ? "" : refuse();
    if (name == "div") {
      const bool rounds = call.op->operator_name().overload_name != "out";
      return linear == std::vector<size_t>{0} && !rounds ? "" : refuse();
    }
    if (name == "where") {
      if (is_linear(0)) return refuse();
      for (const size_t a : {1, 2}) {
        if (!is_linear(a) && !is_zero(call.arguments[a])) return refuse();
      }
      return "";
    }
    const bool is_backward = name.ends_with("_backward");
    if (is_backward && linear.size() == 1 && formals[linear[0]].name() == "grad_output") return "";
    return refuse();
  }

  bool is_zero(const Argument& argument) const {
    if (argument.kind != ArgumentKind::kTensor || !is_known_number(argument.tensors[0]))
      return false;
    const External& external = recording_.externals[argument.tensors[0].index];
    return external.tensor.defined() && external.tensor.dim() == 0 &&
           external.tensor.item<double>() == 0;
  }

  // Finds the values of the core that something outside of it reads.
  std::string find_kept() {
    const std::set<int32_t> core(calls(GroupPart::kCore).begin(), calls(GroupPart::kCore).end());
    kept_ = values_leaving(rewriter_, groups_, calls(GroupPart::kCore), core);
    std::set<int32_t> forward = core;
    forward.insert(calls(GroupPart::kSaved).begin(), calls(GroupPart::kSaved).end());
    if (!values_leaving(rewriter_, groups_, calls(GroupPart::kSaved), forward).empty()) {
      return "its backward makes something else that does not depend on the gradient";
    }
    if (kept_.empty() || kept_.size() > kMostKept) {
      return fmt::format("it has {} derivatives", kept_.size());
    }
    for (const int32_t c : calls(GroupPart::kCore)) {
      const TensorRef& result = groups_.element_call(c).result;
      const bool is_kept = std::ranges::find(kept_, result.index) != kept_.end();
      if (is_kept && result.geometry.dtype != gradient_.geometry.dtype) {
        return "a derivative has another type than the gradient";
      }
    }
    // The values that the core reads must be there when the forward group runs.
    const int32_t after = choice_.forward[0].after;
    for (const GroupPart part : {GroupPart::kSaved, GroupPart::kCore}) {
      for (const int32_t c : calls(part)) {
        for (const Argument& argument : groups_.element_call(c).arguments) {
          for (const TensorRef& ref : argument.tensors) {
            if (ref.memory != Memory::kValue || part_of_value_.contains(ref.index) ||
                ref.index == gradient_.index) {
              continue;
            }
            if (recording_.values[ref.index].maker > after ||
                groups_.overwritten_by(ref.index) <= after) {
              return "its backward reads something that is made behind its forward";
            }
          }
        }
      }
    }
    return "";
  }

  const Rewriter& rewriter_;
  const Recording& recording_;
  const TileGroups& groups_;
  const TileChoice& choice_;
  std::map<int32_t, GroupPart> part_of_value_;
  std::vector<int32_t> calls_[4];  // by part
  TensorRef gradient_;             // dy
  std::vector<int32_t> kept_;      // what the core yields
};

void rename(ElementCall& call, const std::map<int32_t, int32_t>& names) {
  const auto apply = [&](TensorRef& ref) {
    if (ref.memory != Memory::kValue) return;
    const auto found = names.find(ref.index);
    if (found != names.end()) ref.index = found->second;
  };
  for (Argument& argument : call.arguments) {
    for (TensorRef& ref : argument.tensors) apply(ref);
  }
  apply(call.result);
}

}  // namespace

Derivative derivative_of(Rewriter& rewriter, const TileGroups& groups, const TileChoice& choice) {
  Differentiation parts(rewriter, groups, choice);
  Derivative found{.refusal = parts.take_apart()};
  if (!found.refusal.empty()) return found;

  const std::vector<int32_t> all = choice.calls();
  const std::set<int32_t> inside(all.begin(), all.end());
  std::map<int32_t, int32_t> derivative;  // by value that the core yields
  for (const int32_t value : parts.kept()) {
    derivative[value] = rewriter.add_value(rewriter.recording().values[value].bytes);
    found.kept.push_back(derivative[value]);
  }

  const TileGroup &forward = choice.forward[0], &backward = choice.backward[0];
  TilePiece make{.name = "derive", .after = forward.after, .source = {}};
  make.source.ones = parts.gradient().index;
  for (const auto* list :
       {&forward.calls, &parts.calls(GroupPart::kSaved), &parts.calls(GroupPart::kCore)}) {
    for (const int32_t c : *list) make.source.calls.push_back(groups.element_call(c));
  }
  std::ranges::stable_sort(make.source.calls, {}, &ElementCall::call);
  for (ElementCall& call : make.source.calls) rename(call, derivative);
  make.source.outputs = values_leaving(rewriter, groups, forward.calls, inside);
  std::ranges::copy(found.kept, std::back_inserter(make.source.outputs));

  TilePiece multiply{.name = "multiply", .after = backward.after, .source = {}};
  for (const int32_t c : parts.calls(GroupPart::kPure)) {
    multiply.source.calls.push_back(groups.element_call(c));
  }
  for (const int32_t c : parts.calls(GroupPart::kCore)) {
    const TensorRef& result = groups.element_call(c).result;
    const auto kept = derivative.find(result.index);
    if (kept == derivative.end()) continue;
    TensorRef of_value = result;
    of_value.index = kept->second;
    multiply.source.calls.push_back(product_of(parts.gradient(), of_value, result));
  }
  for (const int32_t c : parts.calls(GroupPart::kBehind)) {
    multiply.source.calls.push_back(groups.element_call(c));
  }
  const std::set<int32_t> own(backward.calls.begin(), backward.calls.end());
  multiply.source.outputs = values_leaving(rewriter, groups, backward.calls, own);
  found.pieces = {std::move(make), std::move(multiply)};
  return found;
}

void forward_ad(Rewriter& rewriter) {
  const TileGroups groups(rewriter, rules_of_tiles(rewriter.recording()));
  for (const TileChoice& choice : groups.choices()) {
    const Derivative derivative = derivative_of(rewriter, groups, choice);
    if (derivative.refusal.empty()) {
      add_pieces(rewriter, choice, "forward-ad", Exactness::kRounding, derivative.pieces);
    }
  }
}

}  // namespace reprise::runtime::internal::rewrite
