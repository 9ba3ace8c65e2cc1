// The loss of a matrix of log-soft-maxes whose rows are there some at a time, with the bits of ATen's
// loss of the whole matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace reprise::runtime::internal::rewrite {

// A PickedLoss keeps of each row the number that the loss picks. The loss of the matrix with this one
// column adds up the same numbers in the same order as that of all columns. There are no weights of
// classes.
class PickedLoss {
 public:
  // `target` [rows] has the class of each row, or `ignored`. `options` are those of the log-soft-max.
  PickedLoss(const at::Tensor& target, int64_t reduction, int64_t ignored,
             const at::TensorOptions& options);

  // Takes the log-soft-max [count, classes] of the rows from `first` on.
  void add(const at::Tensor& log, int64_t first);
  // Returns the loss and the total weight, once all rows were added.
  std::tuple<at::Tensor, at::Tensor> finish() const;

 private:
  at::Tensor target_, picked_;
  int64_t reduction_, ignored_;
};

}  // namespace reprise::runtime::internal::rewrite
