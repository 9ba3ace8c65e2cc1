// The sum of the rows of a matrix, over blocks of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise::runtime::internal::rewrite {

// A ColumnSum adds up the rows of a matrix, block after block, in the order in which ATen's `sum`
// adds them up on a CPU. That is a cascade: rows are summed in groups of 2^p, these sums in groups of
// 2^p, and so on, in four levels. So the sum of the blocks has the bits of the sum of the whole.
//
// ATen has this order for columns that it takes in groups of four vectors. It adds up the columns
// that remain in another order. The order is no promise of ATen: a trial has to compare the bits
// (row_trial.h).
class ColumnSum {
 public:
  // For so many rows of `columns` numbers of float32 or float64.
  ColumnSum(int64_t rows, int64_t columns, at::ScalarType type);

  // Adds a block of the next rows, which lie one after the other.
  void add(const at::Tensor& block);
  // Writes the sum of all rows, once they are there.
  void finish(const at::Tensor& sum);

 private:
  template <class Number>
  void add_rows(const Number* from, int64_t rows);

  int64_t columns_, power_, done_ = 0;
  at::Tensor levels_;  // a row of sums for each level
};

}  // namespace reprise::runtime::internal::rewrite
