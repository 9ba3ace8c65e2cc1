// Element-wise ops, soft-max and sums can write over an operand. They compute the same numbers with
// the same kernels: ATen's overloads with an `out` argument run the kernel of the operator on
// memory that the caller gives. The table lists only overloads that do so. The generated overloads
// (of batch norm and layer norm) compute elsewhere and copy.
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// `overload` of `name` runs the operator (op, op_overload). It may write over the operands `over`.
// It reads each of them at an element, or along a row, before it writes the result there.
struct Row {
  const char* op;
  const char* op_overload;
  const char* name;
  const char* overload;
  std::array<const char*, 2> over;
};

constexpr std::array kRows = {
    Row{"aten::relu", "", "aten::relu_", "", {"self"}},
    Row{"aten::threshold_backward",
        "",
        "aten::threshold_backward",
        "grad_input",
        {"grad_output", "self"}},
    Row{"aten::gelu", "", "aten::gelu", "out", {"self"}},
    Row{"aten::gelu_backward", "", "aten::gelu_backward", "grad_input", {"grad_output", "self"}},
    Row{"aten::silu", "", "aten::silu", "out", {"self"}},
    Row{"aten::silu_backward", "", "aten::silu_backward", "grad_input", {"grad_output", "self"}},
    Row{"aten::sigmoid", "", "aten::sigmoid", "out", {"self"}},
    Row{"aten::sigmoid_backward",
        "",
        "aten::sigmoid_backward",
        "grad_input",
        {"grad_output", "output"}},
    Row{"aten::tanh", "", "aten::tanh", "out", {"self"}},
    Row{"aten::tanh_backward", "", "aten::tanh_backward", "grad_input", {"grad_output", "output"}},
    Row{"aten::hardtanh_backward",
        "",
        "aten::hardtanh_backward",
        "grad_input",
        {"grad_output", "self"}},
    Row{"aten::hardtanh", "", "aten::hardtanh", "out", {"self"}},
    Row{"aten::leaky_relu", "", "aten::leaky_relu", "out", {"self"}},
    Row{"aten::leaky_relu_backward",
        "",
        "aten::leaky_relu_backward",
        "grad_input",
        {"grad_output", "self"}},
    Row{"aten::elu", "", "aten::elu", "out", {"self"}},
    Row{"aten::elu_backward",
        "",
        "aten::elu_backward",
        "grad_input",
        {"grad_output", "self_or_result"}},
    Row{"aten::add", "Tensor", "aten::add", "out", {"self", "other"}},
    Row{"aten::sub", "Tensor", "aten::sub", "out", {"self", "other"}},
    Row{"aten::mul", "Tensor", "aten::mul", "out", {"self", "other"}},
    Row{"aten::div", "Tensor", "aten::div", "out", {"self", "other"}},
    Row{"aten::neg", "", "aten::neg", "out", {"self"}},
    Row{"aten::_softmax", "", "aten::_softmax", "out", {"self"}},
    Row{"aten::_softmax_backward_data",
        "",
        "aten::_softmax_backward_data",
        "out",
        {"grad_output", "output"}},
    Row{"aten::_log_softmax", "", "aten::_log_softmax", "out", {"self"}},
    Row{"aten::_log_softmax_backward_data",
        "",
        "aten::_log_softmax_backward_data",
        "out",
        {"grad_output", "output"}},
};

const Row* row_of(const c10::OperatorName& name) {
  for (const Row& row : kRows) {
    if (name.name == row.op && name.overload_name == row.op_overload) return &row;
  }
  return nullptr;
}

// Returns whether the result may overwrite the operand. Both must have the same geometry and memory
// of the same size, and the call must read this memory with no other geometry.
bool may_take_over(const TensorRef& result, const TensorRef& operand, const Call& call,
                   const Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  if (!covers_storage(operand, recording) || !covers_storage(result, recording)) return false;
  if (operand.geometry != result.geometry || rewriter.is_result(operand.index)) return false;
  // Kernels of complex numbers round differently when they write over an operand.
  if (c10::isComplexType(operand.geometry.dtype)) return false;
  for (const Argument& argument : call.arguments) {
    for (const TensorRef& other : argument.tensors) {
      if (other.memory == Memory::kValue && other.index == operand.index && other != operand) {
        return false;
      }
    }
  }
  return true;
}

// The arguments of the overload: those of the call by name, and the place of the result.
std::vector<Argument> arguments_for(const c10::FunctionSchema& schema, const Call& call,
                                    const TensorRef& where) {
  std::vector<Argument> arguments;
  for (const c10::Argument& formal : schema.arguments()) {
    if (const Argument* given = argument_of(call, formal.name().c_str())) {
      arguments.push_back(*given);
    } else {
      arguments.push_back({.kind = ArgumentKind::kTensor, .tensors = {where}});
    }
  }
  return arguments;
}

}  // namespace

void in_place(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const Call& call = recording.calls[c];
    const Row* row = row_of(call.op.operator_name());
    if (row == nullptr || call.outputs.size() != 1 || call.outputs[0].size() != 1) continue;
    const TensorRef& result = call.outputs[0][0];
    if (result.memory != Memory::kValue) continue;
    const StepValue& value = recording.values[result.index];
    if (value.maker != static_cast<int32_t>(c) || value.previous >= 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema({row->name, row->overload});
    if (!op) continue;
    int32_t last = -1;
    for (const char* over : row->over) {
      const Argument* operand = over != nullptr ? argument_of(call, over) : nullptr;
      if (operand == nullptr || operand->kind != ArgumentKind::kTensor) continue;
      TensorRef where = operand->tensors[0];
      if (where.index == last || !may_take_over(result, where, call, rewriter)) continue;
      // Ops of a backward pass run once. So an operand that is read later must stay.
      if (call.phase == Phase::kBackward &&
          rewriter.readers(where.index).back() > static_cast<int32_t>(c)) {
        continue;
      }
      last = where.index;
      const int32_t work = rewriter.add_work({.name = call.name() + " in place",
                                              .kernel = kernel_of(*op),
                                              .arguments = arguments_for(op->schema(), call, where),
                                              .grad_mode = call.grad_mode,
                                              .overwrites = {{result.index, where.index}}});
      rewriter.add(CallVariant{static_cast<int32_t>(c), work, {"in-place", over}});
    }
  }
}

}  // namespace reprise::runtime::internal::rewrite
