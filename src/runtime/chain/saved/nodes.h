// This file knows the kinds of nodes that autograd records: the tensors that a node saved for its
// backward, and whether its result can be made again at little cost.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <optional>
#include <vector>

#include "runtime/device/compat.h"

namespace torch::autograd {
class SavedVariable;
}

namespace reprise::runtime::internal::chain {

// Returns the number of writes to the tensor so far.
int64_t version_of(const at::Tensor& tensor);

// An Unchanged is a tensor with its version, which shows whether somebody has written to it.
struct Unchanged {
  at::Tensor tensor;
  int64_t version;

  explicit Unchanged(const at::Tensor& t);
  bool holds() const { return version_of(tensor) == version; }
  // Returns the tensor. Throws InputError if somebody has written to it since.
  const at::Tensor& get() const;
};

// A NormCall has those arguments of a norm's call that the node does not have.
struct NormCall {
  Unchanged weight, bias;  // may be undefined
  double epsilon;
};
// Returns the arguments of an operation that is about to run, or nothing if it is not a norm over
// its batch or its rows.
std::optional<NormCall> norm_call(const at::RecordFunction& event);

// Makes output 0 of a node from its input 0 with the kernel that made it first. If `over`, the
// input may be overwritten.
using Remake = std::function<at::Tensor(const at::Tensor& input, bool over)>;

struct SavedByNode {
  bool is_known = false;
  std::vector<torch::autograd::SavedVariable*> tensors = {};  // whole tensors of the forward pass
  // Input 0 of the node. It has no history if no gradient flows there, or if it is the copy that an
  // operation in place takes.
  torch::autograd::SavedVariable* operand = nullptr;
  torch::autograd::SavedVariable* result = nullptr;  // output 0 of the node
  // Indices of max pooling: places in a plane of `plane` elements, eight bytes each.
  torch::autograd::SavedVariable* indices = nullptr;
  int64_t plane = 0;
  torch::autograd::SavedVariable* factor = nullptr;  // of a product; it has no gradient
  bool is_view = false;                              // output 0 is memory of input 0
  Remake remake = {};  // if not empty: of an element-wise operation or a norm
};

// Returns the tensor as the node sees it. The tensor is undefined if its memory is not ordinary, if
// other hooks look after it, or if it was written to since (the node will report that if its
// backward runs).
at::Tensor saved_tensor(const torch::autograd::SavedVariable* saved, torch::autograd::Node& node);

// Looks at a node. `call` has the arguments of the operation that made the node, if it is a norm.
SavedByNode look_at(torch::autograd::Node& node, const std::optional<NormCall>& call);

}  // namespace reprise::runtime::internal::chain
