// What is known of the kinds of nodes that autograd records: which tensors a node saved for its backward, and
// whether what it made can be made again at little cost.
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

// How often a tensor was written to.
int64_t version_of(const at::Tensor& tensor);

// A tensor with its version.
struct Unchanged {
  at::Tensor tensor;
  int64_t version;

  explicit Unchanged(const at::Tensor& t);
  bool holds() const { return version_of(tensor) == version; }
  // The tensor. InputError if somebody wrote to it since.
  const at::Tensor& get() const;
};

// What the node of a norm does not have, and its call has.
struct NormCall {
  Unchanged weight, bias;  // may be undefined
  double epsilon;
};
// Of an operation that is about to run; none if it is not a norm over its batch or its rows.
std::optional<NormCall> norm_call(const at::RecordFunction& event);

// Output 0 of a node from its input 0, by the kernel that made it first. `over`: the input may be written over.
using Remake = std::function<at::Tensor(const at::Tensor& input, bool over)>;

struct SavedByNode {
  bool is_known = false;
  std::vector<torch::autograd::SavedVariable*> tensors = {};  // of the forward pass, whole
  // Its input 0, perhaps without history: no gradient flows there, or it is the copy that an operation in place takes.
  torch::autograd::SavedVariable* operand = nullptr;
  torch::autograd::SavedVariable* result = nullptr;  // its output 0
  torch::autograd::SavedVariable* indices =
      nullptr;        // max pooling's: eight bytes each, places in a plane
  int64_t plane = 0;  // of so many elements
  torch::autograd::SavedVariable* factor = nullptr;  // of a product, with no gradient of its own
  bool is_view = false;                              // output 0 is memory of input 0
  Remake remake = {};                                // not empty: element-wise, or a norm
};

// The tensor as the node sees it; undefined if there is none of ordinary memory, somebody else looks after it, or it was
// written to since (its node will say so, if its backward runs).
at::Tensor saved_tensor(const torch::autograd::SavedVariable* saved, torch::autograd::Node& node);

// `call`: of the operation that left the node behind.
SavedByNode look_at(torch::autograd::Node& node, const std::optional<NormCall>& call);

}  // namespace reprise::runtime::internal::chain
