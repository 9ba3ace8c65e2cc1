#include "runtime/rewrite/tiles/element_call.h"

#include <ATen/core/enum_tag.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <sstream>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/tiles/tile_trial.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// Operators that are element-wise although PyTorch does not tag them so.
constexpr std::array kUntagged = {
    "aten::hardtanh_backward", "aten::leaky_relu_backward",  "aten::elu_backward",
    "aten::softplus_backward", "aten::hardsigmoid_backward", "aten::hardswish",
    "aten::_to_copy",
};

// Operators whose results are one rounding of an exact number, or a selection. Their bits do not
// depend on how a loop goes over the elements, so operands may be broadcast or have gaps.
constexpr std::array kRoundOnce = {
    "aten::add",      "aten::sub",     "aten::mul",       "aten::div",
    "aten::neg",      "aten::abs",     "aten::where",     "aten::threshold_backward",
    "aten::maximum",  "aten::minimum", "aten::clamp_min", "aten::clamp_max",
    "aten::clamp",    "aten::copy_",   "aten::ge",        "aten::gt",
    "aten::le",       "aten::lt",      "aten::eq",        "aten::ne",
    "aten::hardtanh",
};

template <size_t N>
bool contains(const std::array<const char*, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_one(const c10::IValue& number) {
  return (number.isInt() && number.toInt() == 1) || (number.isDouble() && number.toDouble() == 1);
}

bool rounds_once(const ElementCall& call) {
  if (!contains(kRoundOnce, call.op->operator_name().name)) return false;
  const auto& formals = call.op->schema().arguments();
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    const std::string& formal = formals[a].name();
    if (formal == "rounding_mode" && !call.arguments[a].constant.isNone()) return false;
    if (formal == "alpha" && !is_one(call.arguments[a].constant)) return false;
  }
  return true;
}

int64_t elements_of(const Geometry& geometry) {
  return std::accumulate(geometry.sizes.begin(), geometry.sizes.end(), int64_t{1},
                         std::multiplies<>());
}

Argument number(const c10::Scalar& scalar) {
  const auto type = scalar.isFloatingPoint() ? at::kDouble
                    : scalar.isBoolean()     ? at::kBool
                                             : at::kLong;
  return {.kind = ArgumentKind::kConstant, .constant = at::Tensor(at::scalar_tensor(scalar, type))};
}

bool is_plain(const Geometry& geometry) { return !geometry.conjugate && !geometry.negative; }

bool is_real(at::ScalarType type) { return at::isFloatingType(type) || type == at::kBool; }

}  // namespace

std::optional<c10::OperatorHandle> functional(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (name.name.back() != '_') return op;
  return c10::Dispatcher::singleton().findSchema(
      {name.name.substr(0, name.name.size() - 1), name.overload_name});
}

bool is_element_wise(const Call& call, const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::pointwise) || call.op.hasTag(at::Tag::pointwise) ||
         contains(kUntagged, op.operator_name().name);
}

std::string ElementCall::name() const {
  const std::string& full = op->operator_name().name;
  return full.substr(full.rfind(':') + 1);
}

bool ElementCall::is_number(size_t a) const {
  const Argument& argument = arguments[a];
  return argument.kind == ArgumentKind::kTensor ? strides[a].empty() : argument.constant.isTensor();
}

bool ElementCall::is_whole(size_t a) const {
  if (strides[a].empty()) return false;
  int64_t stride = 1;
  for (size_t d = strides[a].size(); d-- > 0;) {
    if (strides[a][d] != stride) return false;
    if (d > 0) stride *= inner[d - 1];
  }
  return true;
}

const std::vector<std::string>& ElementCalls::overloads(const std::string& name) {
  if (overloads_.empty()) {
    for (const c10::OperatorName& one : c10::Dispatcher::singleton().getAllOpNames()) {
      overloads_[one.name].push_back(one.overload_name);
    }
  }
  return overloads_[name];
}

// Generated overloads compute aside and copy. They have no kernel for the device.
std::optional<c10::OperatorHandle> ElementCalls::writing_overload(
    const c10::FunctionSchema& schema) {
  const auto& wanted = schema.arguments();
  if (schema.returns().size() != 1) return std::nullopt;
  for (const std::string& overload : overloads(schema.name())) {
    const auto op = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const auto& formals = op->schema().arguments();
    if (formals.size() != wanted.size() + 1 || !formals.back().is_out()) continue;
    const bool fits = std::equal(wanted.begin(), wanted.end(), formals.begin(),
                                 [](const c10::Argument& a, const c10::Argument& b) {
                                   return a.name() == b.name() && *a.type() == *b.type();
                                 });
    if (fits) return op;
  }
  return std::nullopt;
}

bool ElementCalls::find_operator(const Call& call, ElementCall& found) {
  const auto op = functional(call.op);
  if (!op) return false;
  if (!is_element_wise(call, *op)) return false;
  const std::string& name = op->operator_name().name;
  auto& dispatcher = c10::Dispatcher::singleton();
  found.arguments = call.arguments;
  if (name == "aten::_to_copy" || name == "aten::clone") {
    found.op = dispatcher.findSchema({"aten::copy_", ""});
    found.arguments.resize(1);
    found.arguments.push_back({.constant = false});  // non_blocking
    found.result_first = true;
    return found.op.has_value();
  }
  if (name == "aten::relu") {
    found.op = dispatcher.findSchema({"aten::clamp_min", "out"});
    found.arguments.push_back({.constant = c10::Scalar(0)});
    return found.op.has_value();
  }
  // The overload with a number makes a tensor of it at each call. This one takes the tensor.
  if (op->operator_name().overload_name == "Scalar" && found.arguments.size() > 1 &&
      found.arguments[1].constant.isScalar()) {
    const auto of_tensors = dispatcher.findSchema({name, "Tensor"});
    if (!of_tensors || found.arguments.size() != of_tensors->schema().arguments().size()) {
      return false;
    }
    found.op = writing_overload(of_tensors->schema());
    found.arguments[1] = number(found.arguments[1].constant.toScalar());
    return found.op.has_value();
  }
  found.op = writing_overload(op->schema());
  return found.op.has_value();
}

bool ElementCalls::find_space(ElementCall& found) const {
  const Geometry& result = found.result.geometry;
  const size_t rank = result.sizes.size();
  // The dimensions of the result as they lie in memory, the outermost first.
  std::vector<size_t> order;
  for (size_t d = 0; d < rank; ++d) {
    if (result.sizes[d] != 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return result.strides[a] > result.strides[b]; });
  int64_t dense = 1;
  for (size_t k = order.size(); k-- > 0;) {
    if (result.strides[order[k]] != dense) return false;
    dense *= result.sizes[order[k]];
  }
  found.elements = dense;

  // Now find how each operand goes through these dimensions.
  found.strides.assign(found.arguments.size(), {});
  for (size_t a = 0; a < found.arguments.size(); ++a) {
    const Argument& argument = found.arguments[a];
    if (argument.kind == ArgumentKind::kConstant) continue;
    if (argument.kind != ArgumentKind::kTensor) return false;
    const TensorRef& ref = argument.tensors[0];
    if (ref.memory == Memory::kNone || !is_plain(ref.geometry)) return false;
    if (elements_of(ref.geometry) == 1) continue;
    const Geometry& look = ref.geometry;
    if (look.sizes.size() > rank) return false;
    const size_t missing = rank - look.sizes.size();
    for (const size_t d : order) {
      const bool broadcast = d < missing || look.sizes[d - missing] == 1;
      if (!broadcast && look.sizes[d - missing] != result.sizes[d]) return false;
      found.strides[a].push_back(broadcast ? 0 : look.strides[d - missing]);
    }
  }

  // Join dimensions through which all operands go in equal steps.
  std::vector<int64_t> sizes;
  for (const size_t d : order) sizes.push_back(result.sizes[d]);
  for (size_t k = sizes.size(); k-- > 1;) {
    const bool joins = std::ranges::all_of(found.strides, [&](const std::vector<int64_t>& steps) {
      return steps.empty() || steps[k - 1] == steps[k] * sizes[k];
    });
    if (!joins) continue;
    sizes[k - 1] *= sizes[k];
    sizes.erase(sizes.begin() + static_cast<int64_t>(k));
    for (std::vector<int64_t>& steps : found.strides) {
      if (!steps.empty()) steps.erase(steps.begin() + static_cast<int64_t>(k) - 1);
    }
  }
  if (sizes.empty()) return false;
  found.inner.assign(sizes.begin() + 1, sizes.end());
  found.unit = found.elements / sizes[0];
  const bool flat = found.inner.empty() &&
                    std::ranges::all_of(found.strides, [](const std::vector<int64_t>& steps) {
                      return steps.empty() || steps[0] == 1;
                    });
  return flat || found.rounds_once;
}

std::optional<TensorRef> single_result(const Recording& recording, int32_t c) {
  const Call& call = recording.calls[c];
  if (call.random || !call.effects.empty() || call.outputs.size() != 1 ||
      call.outputs[0].size() != 1) {
    return std::nullopt;
  }
  const TensorRef& result = call.outputs[0][0];
  if (!covers_storage(result, recording) || !is_plain(result.geometry) ||
      !is_real(result.geometry.dtype)) {
    return std::nullopt;
  }
  const StepValue& value = recording.values[result.index];
  if (value.maker != c) return std::nullopt;
  // The call writes over its first operand, and over all of its memory.
  if (value.previous >= 0) {
    const Argument& first = call.arguments[0];
    if (call.op.operator_name().name.back() != '_' || first.kind != ArgumentKind::kTensor ||
        first.tensors[0].index != value.previous || first.tensors[0].memory != Memory::kValue ||
        first.tensors[0].geometry != result.geometry) {
      return std::nullopt;
    }
  } else if (call.op.operator_name().name.back() == '_') {
    return std::nullopt;
  }
  return result;
}

std::optional<ElementCall> ElementCalls::at(int32_t c) {
  const Call& call = recording_.calls[c];
  const std::optional<TensorRef> result = single_result(recording_, c);
  if (!result) return std::nullopt;
  ElementCall found{.call = c, .result = *result};
  if (!find_operator(call, found)) return std::nullopt;
  found.rounds_once = rounds_once(found);
  if (!find_space(found)) return std::nullopt;

  std::ostringstream kind;
  kind << call.name() << ' ' << c10::toString(result->geometry.dtype) << ' '
       << ends_with_one(found.elements);
  bool has_type = false;
  for (size_t a = 0; a < found.arguments.size(); ++a) {
    const Argument& argument = found.arguments[a];
    if (argument.kind == ArgumentKind::kConstant) continue;
    const Geometry& look = argument.tensors[0].geometry;
    kind << ' ' << c10::toString(look.dtype) << (found.is_tensor(a) ? "" : "!")
         << look.wrapped_number;
    if (!is_real(look.dtype) && found.is_tensor(a)) return std::nullopt;
    if (found.is_tensor(a) && look.dtype != at::kBool && !has_type) {
      found.type = look.dtype;
      has_type = true;
    }
  }
  if (!has_type) return std::nullopt;
  for (size_t a = 0; a < found.arguments.size(); ++a) {
    if (found.arguments[a].kind != ArgumentKind::kTensor || found.is_tensor(a)) continue;
    const Geometry& look = found.arguments[a].tensors[0].geometry;
    // A tensor with dimensions decides the type of the result. A number does not.
    if (look.dtype != found.type && !look.sizes.empty()) return std::nullopt;
    if (at::isComplexType(look.dtype)) return std::nullopt;
  }
  for (const Argument& argument : call.arguments) {
    if (argument.kind == ArgumentKind::kConstant) kind << ';' << argument.constant;
  }
  const auto [passed, fresh] = passed_.try_emplace(kind.str(), false);
  if (fresh) passed->second = passes_trial(found, call);
  if (!passed->second) return std::nullopt;
  return found;
}

ElementCall product_of(const TensorRef& a, const TensorRef& b, const TensorRef& result) {
  ElementCall product{.op = c10::Dispatcher::singleton().findSchema({"aten::mul", "out"}),
                      .arguments = {{.kind = ArgumentKind::kTensor, .tensors = {a}},
                                    {.kind = ArgumentKind::kTensor, .tensors = {b}}},
                      .result = result,
                      .elements = elements_of(result.geometry),
                      .strides = {{1}, {1}},
                      .type = result.geometry.dtype,
                      .rounds_once = true};
  return product;
}

}  // namespace reprise::runtime::internal::rewrite
