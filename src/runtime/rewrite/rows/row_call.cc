#include "runtime/rewrite/rows/row_call.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

namespace {

int64_t elements_in(const Geometry& geometry) {
  return std::accumulate(geometry.sizes.begin(), geometry.sizes.end(), int64_t{1},
                         std::multiplies<>());
}

bool is_plain_matrix(const Geometry& look) {
  const bool has_type = look.dtype == at::kFloat || look.dtype == at::kDouble;
  return has_type && look.sizes.size() == 2 && !look.conjugate && !look.negative;
}

// Returns whether the tensor is a matrix whose rows lie one after the other, without gaps.
bool is_rows(const TensorRef& ref) {
  return ref.memory != Memory::kNone && is_plain_matrix(ref.geometry) && is_in_rows(ref.geometry);
}

TensorRef transposed(TensorRef ref) {
  std::swap(ref.geometry.sizes[0], ref.geometry.sizes[1]);
  std::swap(ref.geometry.strides[0], ref.geometry.strides[1]);
  return ref;
}

bool is_one(const Argument* argument) {
  return argument != nullptr && argument->constant.isScalar() &&
         argument->constant.toScalar().equal(1);
}

}  // namespace

int64_t RowCall::width() const { return elements_in(result.geometry) / (has_rows() ? rows : 1); }

int64_t RowCalls::rows_of_product(int32_t c) const {
  RowCall found;
  if (!find_product(recording_.calls[c], found)) return 0;
  return found.operands[0].geometry.sizes[0];
}

bool RowCalls::find_product(const Call& call, RowCall& found) const {
  const std::string& name = call.op.operator_name().name;
  const bool has_bias = name == "aten::addmm";
  if ((!has_bias && name != "aten::mm") || call.arguments.size() < 2) return false;
  const TensorRef& rows = argument_of(call, has_bias ? "mat1" : "self")->tensors[0];
  const TensorRef& matrix = argument_of(call, "mat2")->tensors[0];
  if (!is_rows(rows) || matrix.memory == Memory::kNone || !is_plain_matrix(matrix.geometry)) {
    return false;
  }
  found.operands = {rows, matrix};
  if (!has_bias) return true;
  const TensorRef& bias = argument_of(call, "self")->tensors[0];
  found.operands.push_back(bias);
  return is_one(argument_of(call, "beta")) && is_one(argument_of(call, "alpha")) &&
         bias.memory != Memory::kNone && bias.geometry.sizes.size() == 1 &&
         bias.geometry.dtype == rows.geometry.dtype;
}

bool RowCalls::find_weight(const Call& call, RowCall& found) const {
  if (call.op.operator_name().name != "aten::mm") return false;
  const TensorRef& left = argument_of(call, "self")->tensors[0];
  const TensorRef& right = argument_of(call, "mat2")->tensors[0];
  if (left.memory == Memory::kNone || !is_plain_matrix(left.geometry)) return false;
  found.operands = {transposed(left), right};
  return is_rows(found.operands[0]) && is_rows(right);
}

bool RowCalls::find_sum(const Call& call, RowCall& found) const {
  if (call.name() != "sum.dim_IntList") return false;
  TensorRef rows = argument_of(call, "self")->tensors[0];
  const c10::IValue& dims = argument_of(call, "dim")->constant;
  Geometry& look = rows.geometry;
  if (rows.memory == Memory::kNone || look.sizes.size() < 2 || !is_in_rows(look) ||
      !dims.isIntList()) {
    return false;
  }
  std::vector<int64_t> all_but_last(look.sizes.size() - 1);
  std::iota(all_but_last.begin(), all_but_last.end(), int64_t{0});
  std::vector<int64_t> summed = dims.toIntVector();
  std::ranges::sort(summed);
  const int64_t width = look.sizes.back();
  if (summed != all_but_last || width == 0) return false;
  look.sizes = {elements_in(look) / width, width};
  look.strides = {width, 1};
  found.operands = {rows};
  return is_rows(rows) && call.outputs[0][0].geometry.dtype == look.dtype;
}

std::optional<RowCall> RowCalls::at(int32_t c, int64_t rows) {
  const Call& call = recording_.calls[c];
  if (call.random || !call.effects.empty() || call.outputs.size() != 1 ||
      call.outputs[0].size() != 1) {
    return std::nullopt;
  }
  RowCall found{.call = c, .rows = rows, .result = call.outputs[0][0]};
  if (!covers_storage(found.result, recording_)) return std::nullopt;
  const StepValue& made = recording_.values[found.result.index];
  if (made.maker != c) return std::nullopt;
  const bool is_fresh = made.previous < 0 && is_in_rows(found.result.geometry);
  if (is_fresh && find_weight(call, found) && found.operands[0].geometry.sizes[0] == rows &&
      found.operands[1].geometry.sizes[0] == rows) {
    found.kind = RowKind::kWeight;
    return found;
  }
  if (is_fresh && find_product(call, found) && found.operands[0].geometry.sizes[0] == rows) {
    found.kind = RowKind::kProduct;
    return found;
  }
  if (is_fresh && find_sum(call, found) && found.operands[0].geometry.sizes[0] == rows) {
    found.kind = RowKind::kSum;
    return found;
  }
  found.operands.clear();
  found.elements = element_calls_.at(c);
  if (!found.elements || !is_in_rows(found.result.geometry) ||
      found.elements->elements % rows != 0 || found.width() % found.elements->unit != 0) {
    return std::nullopt;
  }
  return found;
}

int64_t largest_block(const RowBlocks& blocks) {
  int64_t largest = 0;
  for_each_block(blocks, [&](int64_t, int64_t count) { largest = std::max(largest, count); });
  return largest;
}

void multiply_rows(const at::Tensor& rows, const at::Tensor& matrix, const at::Tensor& bias,
                   at::Tensor result) {
  if (bias.defined()) {
    at::addmm_out(result, bias, rows, matrix);
  } else {
    at::mm_out(result, rows, matrix);
  }
}

void add_weight(const at::Tensor& left, const at::Tensor& right, int64_t first, int64_t weight,
                at::Tensor result) {
  const int64_t count = left.size(0);
  for (int64_t row = 0; row < count; row += weight) {
    const int64_t some = std::min(weight, count - row);
    const at::Tensor part = left.narrow(0, row, some).t(), other = right.narrow(0, row, some);
    if (first + row == 0) {
      at::mm_out(result, part, other);
    } else {
      result.addmm_(part, other);
    }
  }
}

}  // namespace reprise::runtime::internal::rewrite
