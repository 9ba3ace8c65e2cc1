#include "runtime/rewrite/regions/region_call.h"

#include <algorithm>
#include <array>
#include <string>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/regions/region_text.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// Operators that only move elements.
constexpr std::array kMoving = {"aten::cat", "aten::stack", "aten::slice_backward",
                                "aten::select_backward"};

// With operands of 16 bits these compute with the unrounded number. A description says so by casts.
constexpr std::array kWideNumber = {"aten::add", "aten::sub", "aten::mul", "aten::div"};

bool contains(const auto& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool has_name(const c10::OperatorHandle& op) {
  return op.operator_name().name.starts_with("aten::");
}

bool is_describable(at::ScalarType type) {
  return at::isFloatingType(type) ? c10::elementSize(type) > 1
                                  : type == at::kBool || at::isIntegralType(type, false);
}

}  // namespace

bool is_number(const Argument& argument, const Recording& recording) {
  if (argument.kind != ArgumentKind::kTensor) return false;
  const TensorRef& ref = argument.tensors[0];
  return ref.memory == Memory::kExternal && ref.geometry.sizes.empty() &&
         is_host_number(recording.externals[ref.index]);
}

std::optional<ElementCall> region_call(const Recording& recording, int32_t c) {
  const Call& call = recording.calls[c];
  const std::optional<TensorRef> result = single_result(recording, c);
  const std::optional<c10::OperatorHandle> op = functional(call.op);
  if (!result || !op || !has_name(*op)) return std::nullopt;
  const std::string& name = op->operator_name().name;
  if (!is_element_wise(call, *op) && !contains(kMoving, name)) return std::nullopt;
  ElementCall found{.call = c, .op = op, .arguments = call.arguments, .result = *result};
  found.elements = 1;
  for (const int64_t size : result->geometry.sizes) found.elements *= size;

  const auto& formals = op->schema().arguments();
  if (formals.size() != call.arguments.size()) return std::nullopt;
  bool has_number = false, has_type = false;
  found.strides.assign(call.arguments.size(), {});
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    const Argument& argument = call.arguments[a];
    if (argument.kind == ArgumentKind::kConstant) {
      const bool is_copied = name == "aten::_to_copy" || name == "aten::clone";
      if (!is_copied && !text_of(argument.constant, formals[a])) return std::nullopt;
      continue;
    }
    if (argument.kind == ArgumentKind::kOptionalTensorList) return std::nullopt;
    has_number = has_number || is_number(argument, recording);
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kNone || ref.geometry.conjugate || ref.geometry.negative ||
          !is_describable(ref.geometry.dtype)) {
        return std::nullopt;
      }
      if (is_number(argument, recording)) continue;
      if (ref.geometry.wrapped_number) return std::nullopt;
      found.strides[a] = {1};
      if (!has_type && at::isFloatingType(ref.geometry.dtype)) {
        found.type = ref.geometry.dtype;
        has_type = true;
      }
    }
  }
  if (!has_type) return std::nullopt;
  if (has_number && c10::isReducedFloatingType(found.type) && !contains(kWideNumber, name)) {
    return std::nullopt;
  }
  return found;
}

}  // namespace reprise::runtime::internal::rewrite
