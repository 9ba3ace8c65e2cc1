#include "runtime/rewrite/rows/column_sum.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr int64_t kLevels = 4, kLanes = 4;
constexpr int64_t kLeastPower = 4;
constexpr int64_t kGroupBytes = 128;

template <class Number>
void add_to(Number* to, const Number* from, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] += from[c];
}

int64_t columns_left(int64_t columns, at::ScalarType type) {
  return columns % (kGroupBytes / static_cast<int64_t>(c10::elementSize(type)));
}

}  // namespace

ColumnSum::Cascade::Cascade(int64_t rows, int64_t width, at::ScalarType type)
    : columns(width), levels(at::zeros({kLevels, width}, at::TensorOptions(type))) {
  const auto digits =
      static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(rows, 1) - 1)));
  power = std::max(kLeastPower, digits / kLevels);
}

template <class Number>
void ColumnSum::Cascade::add(const Number* row) {
  auto* const sums = levels.mutable_data_ptr<Number>();
  add_to(sums, row, columns);
  ++done;
  // A full group goes up a level, and on as far as it fills groups there.
  const int64_t mask = (int64_t{1} << power) - 1;
  for (int64_t level = 1; level < kLevels; ++level) {
    if ((done & (mask << ((level - 1) * power))) != 0) break;
    Number* const below = sums + (level - 1) * columns;
    add_to(below + columns, below, columns);
    std::fill_n(below, columns, Number(0));
  }
}

at::Tensor ColumnSum::Cascade::sum() {
  at::Tensor all = levels.select(0, 0);
  for (int64_t level = 1; level < kLevels; ++level) all.add_(levels.select(0, level));
  return all;
}

ColumnSum::ColumnSum(int64_t rows, int64_t columns, const at::TensorOptions& options)
    : ColumnSum(rows, options.device().is_cpu() ? columns : 0,
                c10::typeMetaToScalarType(options.dtype())) {
  if (!options.device().is_cpu()) of_blocks_ = at::zeros({columns}, options);
}

ColumnSum::ColumnSum(int64_t rows, int64_t columns, at::ScalarType type)
    : rest_(columns_left(columns, type)),
      groups_(rows, columns - rest_, type),
      lanes_(rows / kLanes, kLanes * rest_, type),
      waiting_(at::zeros({kLanes, rest_}, at::TensorOptions(type))) {}

template <class Number>
void ColumnSum::add_rows(const Number* from, int64_t rows) {
  auto* const waiting = waiting_.mutable_data_ptr<Number>();
  for (int64_t r = 0; r < rows; ++r, from += groups_.columns + rest_) {
    groups_.add(from);
    const int64_t lane = done_++ % kLanes;
    std::copy_n(from + groups_.columns, rest_, waiting + lane * rest_);
    if (lane + 1 == kLanes) lanes_.add(waiting);
  }
}

void ColumnSum::add(const at::Tensor& block) {
  if (of_blocks_.defined()) {
    of_blocks_.add_(block.sum(0));
    return;
  }
  if (waiting_.scalar_type() == at::kDouble) {
    add_rows(block.const_data_ptr<double>(), block.size(0));
  } else {
    add_rows(block.const_data_ptr<float>(), block.size(0));
  }
}

void ColumnSum::finish(const at::Tensor& sum) {
  if (of_blocks_.defined()) {
    sum.view({-1}).copy_(of_blocks_);
    return;
  }
  const at::Tensor lanes = lanes_.sum().view({kLanes, rest_});
  at::Tensor rest = lanes.select(0, 0);
  for (int64_t row = 0; row < done_ % kLanes; ++row) rest.add_(waiting_.select(0, row));
  for (int64_t lane = 1; lane < kLanes; ++lane) rest.add_(lanes.select(0, lane));
  const at::Tensor all = sum.view({groups_.columns + rest_});
  all.narrow(0, 0, groups_.columns).copy_(groups_.sum());
  all.narrow(0, groups_.columns, rest_).copy_(rest);
}

}  // namespace reprise::runtime::internal::rewrite
