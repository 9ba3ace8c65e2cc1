// Copies values of tensors, puts them back and compares them bit by bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise::runtime::internal::state {

// Copies the values of tensors and puts them back. The memory of the copies is taken once. A keeper
// does not touch the version counters of the tensors: autograd saves the statistics of a batch
// norm, and would refuse them if their counters moved. A keeper follows a tensor whose memory is
// replaced (to(), torch::load).
class ValueKeeper {
 public:
  explicit ValueKeeper(const std::vector<at::Tensor>& tensors);
  // The copies lie in `memory`, which has at least bytes_of(tensors) bytes. Others may use this
  // memory between restore() and save().
  ValueKeeper(const std::vector<at::Tensor>& tensors, const at::Tensor& memory);
  static int64_t bytes_of(const std::vector<at::Tensor>& tensors);

  // Returns a keeper of some of the tensors. It shares the copies of this keeper.
  ValueKeeper part(const std::vector<at::Tensor>& tensors) const;
  void save();
  void restore() const;
  // Returns whether any value differs from its copy of the last save().
  bool changed() const;

 private:
  ValueKeeper() = default;

  std::vector<at::Tensor> tensors_, copies_;
};

// Returns whether the tensors have equal shapes, types and bits. Two undefined tensors are equal.
bool bitwise_equal(const at::Tensor& a, const at::Tensor& b);

}  // namespace reprise::runtime::internal::state
