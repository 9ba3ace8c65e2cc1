#include "runtime/rewrite/rows/column_sum.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr int64_t kLevels = 4;
constexpr int64_t kLeastPower = 4;

template <class Number>
void add_to(Number* to, const Number* from, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] += from[c];
}

}  // namespace

ColumnSum::ColumnSum(int64_t rows, int64_t columns, at::ScalarType type)
    : columns_(columns), levels_(at::zeros({kLevels, columns}, at::TensorOptions(type))) {
  const auto digits = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(rows - 1)));
  power_ = std::max(kLeastPower, digits / kLevels);
}

template <class Number>
void ColumnSum::add_rows(const Number* from, int64_t rows) {
  auto* const levels = levels_.mutable_data_ptr<Number>();
  const int64_t mask = (int64_t{1} << power_) - 1;
  for (int64_t r = 0; r < rows; ++r) {
    add_to(levels, from + r * columns_, columns_);
    ++done_;
    // A full group goes up a level, and on as far as it fills groups there.
    for (int64_t level = 1; level < kLevels; ++level) {
      if ((done_ & (mask << ((level - 1) * power_))) != 0) break;
      Number* const below = levels + (level - 1) * columns_;
      add_to(below + columns_, below, columns_);
      std::fill_n(below, columns_, Number(0));
    }
  }
}

void ColumnSum::add(const at::Tensor& block) {
  if (levels_.scalar_type() == at::kDouble) {
    add_rows(block.const_data_ptr<double>(), block.size(0));
  } else {
    add_rows(block.const_data_ptr<float>(), block.size(0));
  }
}

void ColumnSum::finish(const at::Tensor& sum) {
  at::Tensor all = levels_.select(0, 0);
  for (int64_t level = 1; level < kLevels; ++level) all.add_(levels_.select(0, level));
  sum.view({columns_}).copy_(all);
}

}  // namespace reprise::runtime::internal::rewrite
