// Takes back what a step in online mode has done outside itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <unordered_set>

#include "runtime/online/record.h"
#include "runtime/state/random_state.h"
#include "runtime/step/before_images.h"

namespace reprise::runtime::internal::online {

// Keeps what is there before a step: the random state at once, memory when the step first writes it,
// gradients and flags of leaf tensors when the step first reads them.
class Undo {
 public:
  explicit Undo(c10::Device device);

  // An operator reads this tensor, which is from outside.
  void note_read(const at::Tensor& tensor) {
    if (tensor.requires_grad() && tensor.is_leaf()) note_leaf(tensor);
  }
  // An operator is about to write the memory of this tensor, which is from outside.
  void note_write(const at::Tensor& tensor);
  // Puts everything back. No operator may be recorded meanwhile.
  void restore();

 private:
  void note_leaf(const at::Tensor& tensor);
  bool is_from_before(const at::Tensor& tensor) const;

  const uint64_t last_host_block_;  // the allocator's, as the step began
  state::RandomState random_;
  step::BeforeImages images_;
  std::unordered_set<const void*> leaves_;
};

}  // namespace reprise::runtime::internal::online
