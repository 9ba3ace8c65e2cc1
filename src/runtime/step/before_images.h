// These are images of memory from before a run of a step. They serve to take back what the run has
// written outside itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::step {

// BeforeImages hold the contents of storages before the step wrote them, the gradients of leaf
// tensors, and the memory that tensors lay in.
class BeforeImages {
 public:
  void keep_place(const at::Tensor& tensor) { places_.emplace_back(tensor, tensor.tensor_data()); }
  // Says whether a tensor lies elsewhere than when its place was kept.
  bool moved() const;
  void keep_gradient(const at::Tensor& leaf) { gradients_.emplace_back(leaf, leaf.grad()); }
  // Keeps whether the tensor wants a gradient. The tensor is a parameter or an input.
  void keep_flag(const at::Tensor& tensor);
  // Returns the tensors whose flag is another one now, each once.
  std::vector<at::Tensor> flipped() const;
  void keep(const at::Tensor& tensor, HostBytes bytes);
  bool has(const at::Tensor& tensor) const;
  void restore() const;

 private:
  std::map<const void*, std::pair<at::Tensor, HostBytes>> images_;  // by storage
  std::vector<std::pair<at::Tensor, at::Tensor>> places_;           // tensor, and its place
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;        // leaf, and its .grad
  std::map<const void*, std::pair<at::Tensor, bool>> flags_;        // by tensor: it, and its flag
};

}  // namespace reprise::runtime::internal::step
