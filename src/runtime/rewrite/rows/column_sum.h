// Sums the rows of a matrix, over blocks of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise::runtime::internal::rewrite {

// A ColumnSum adds up the rows of a matrix, block after block, in the order in which ATen's `sum`
// adds them up on a CPU. So the sum of the blocks has the bits of the sum of the whole.
//
// The order is a cascade: rows are summed in groups of 2^p, these sums in groups of 2^p, and so on,
// in four levels. ATen takes columns in groups of 128 bytes. It adds up those that remain in four
// lanes, each with every fourth row and a cascade of its own, and then adds the lanes. None of this
// is a promise of ATen: a trial has to compare the bits (row_trial.h). On other devices the sums of the
// blocks are added up.
class ColumnSum {
 public:
  // The matrix has `rows` rows of `columns` numbers of float32 or float64, and lies on the device of
  // the options.
  ColumnSum(int64_t rows, int64_t columns, const at::TensorOptions& options);

  // Adds a block of the next rows, which lie one after the other.
  void add(const at::Tensor& block);
  // Writes the sum of all rows, once they are there.
  void finish(const at::Tensor& sum);

 private:
  struct Cascade {
    Cascade(int64_t rows, int64_t columns, at::ScalarType type);
    template <class Number>
    void add(const Number* row);
    at::Tensor sum();

    int64_t columns, power, done = 0;
    at::Tensor levels;  // a row of sums for each level
  };

  ColumnSum(int64_t rows, int64_t columns, at::ScalarType type);  // of a matrix on the CPU
  template <class Number>
  void add_rows(const Number* from, int64_t rows);

  at::Tensor of_blocks_;     // undefined on the CPU
  int64_t done_ = 0, rest_;  // rows; the columns in lanes
  Cascade groups_, lanes_;
  at::Tensor waiting_;  // rows for the lanes, until there is one for each
};

}  // namespace reprise::runtime::internal::rewrite
