#include "runtime/online/costs.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace reprise::runtime::internal::online {
namespace {

// These numbers are those of one core of a processor of today, in round numbers. Only the ratios
// matter.
constexpr double kCall = 500;         // nanoseconds
constexpr double kBytesPerNano = 8;   // memory that is read or written
constexpr double kFlopsPerNano = 20;  // multiplications and additions in a product

double elements(const View& view) {
  double product = 1;
  for (const int64_t size : view.shape.sizes_arrayref()) product *= static_cast<double>(size);
  return product;
}

// An Arithmetic counts the multiplications and additions of a call, from the shapes of its
// operands. Each of them counts as one.
using Arithmetic = double (*)(const RecordedCall&);

double last_size(const View& view) {
  const auto sizes = view.shape.sizes_arrayref();
  return sizes.empty() ? 1 : static_cast<double>(sizes.back());
}

// [.., m, k] times [.., k, n]: 2 m k n for each matrix of the batch.
template <size_t kFirst>
double product(const RecordedCall& call) {
  return 2 * elements(call.operands[kFirst].view) * last_size(call.operands[kFirst + 1].view);
}

// Each of `elements` of the result, or of its gradient, takes a product with a filter.
double filters(double elements, const View& weight) {
  double filter = 1;
  for (const int64_t size : weight.shape.sizes_arrayref().slice(1)) {
    filter *= static_cast<double>(size);
  }
  return 2 * elements * filter;
}

double convolution(const RecordedCall& call) {
  const View& weight = call.operands[1].view;
  const ValuePtr result = call.made.empty() ? nullptr : call.made[0].value.lock();
  if (!result || weight.shape.size() == 0) return 0;
  const auto itemsize = static_cast<double>(c10::elementSize(weight.dtype));
  return filters(static_cast<double>(result->bytes) / itemsize, weight);
}

double convolution_backward(const RecordedCall& call) {
  const View& weight = call.operands[2].view;
  if (weight.shape.size() == 0) return 0;
  return 2 * filters(elements(call.operands[0].view), weight);
}

// Queries, keys and values: scores, and their product with the values.
double attention(const RecordedCall& call) {
  const auto keys = call.operands[1].view.shape.sizes_arrayref();
  const double length = keys.size() < 2 ? 1 : static_cast<double>(keys[keys.size() - 2]);
  return 4 * elements(call.operands[0].view) * length;
}

struct Row {
  std::string_view op;
  size_t operands;  // that the function looks at
  Arithmetic arithmetic;
};

constexpr std::array kRows = {
    Row{"aten::mm", 2, &product<0>},
    Row{"aten::bmm", 2, &product<0>},
    Row{"aten::addmm", 3, &product<1>},
    Row{"aten::baddbmm", 3, &product<1>},
    Row{"aten::convolution", 2, &convolution},
    Row{"aten::convolution_backward", 3, &convolution_backward},
    Row{"aten::_scaled_dot_product_flash_attention_for_cpu", 3, &attention},
    Row{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", 3, &attention},
};

}  // namespace

double modelled_cost(const RecordedCall& call) {
  double bytes = 0;
  for (const Operand& operand : call.operands) {
    if (!operand.value || operand.shape_only) continue;
    const auto itemsize = static_cast<double>(c10::elementSize(operand.view.dtype));
    bytes += std::min(static_cast<double>(operand.value->bytes), elements(operand.view) * itemsize);
  }
  for (const Made& made : call.made) {
    if (const ValuePtr value = made.value.lock()) bytes += static_cast<double>(value->bytes);
  }
  double flops = 0;
  for (const Row& row : kRows) {
    if (call.facts.name == row.op && call.operands.size() >= row.operands) {
      flops = row.arithmetic(call);
    }
  }
  return kCall + bytes / kBytesPerNano + flops / kFlopsPerNano;
}

}  // namespace reprise::runtime::internal::online
