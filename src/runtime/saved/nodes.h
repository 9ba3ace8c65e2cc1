// What is known of the kinds of nodes that autograd records: which tensors a node saved for its backward, and
// whether what it made can be made again at little cost.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "compat.h"

namespace torch::autograd {
class SavedVariable;
}

namespace reprise::runtime {

// Tensors by the node where a graph ends: parameters, and what a stage was given.
using Leaves = std::unordered_map<const torch::autograd::Node*, at::Tensor>;

// A tensor with the number of times that it had been written to.
struct Unchanged {
  at::Tensor tensor;
  int64_t version;

  explicit Unchanged(const at::Tensor& t);
  // The tensor. InputError if somebody wrote to it since.
  const at::Tensor& get() const;
};

// Output 0 of a node from its input 0, by the kernel that made it first. `over`: the input may be written over.
using Remake = std::function<at::Tensor(const at::Tensor& input, bool over)>;

struct SavedByNode {
  std::vector<torch::autograd::SavedVariable*> tensors = {};  // of the forward pass, whole
  // Its input 0, perhaps without history: no gradient flows there, or it is the copy that an operation in place takes.
  torch::autograd::SavedVariable* operand = nullptr;
  torch::autograd::SavedVariable* result = nullptr;           // its output 0
  torch::autograd::SavedVariable* indices = nullptr;  // max pooling's: eight bytes each, places in a plane
  int64_t plane = 0;                                  // of so many elements
  torch::autograd::SavedVariable* factor = nullptr;   // of a product, with no gradient of its own
  bool is_view = false;                               // output 0 is memory of input 0
  Remake remake = {};  // not empty: element-wise, or a norm
};

// Nothing, for kinds that are not known.
SavedByNode look_at(torch::autograd::Node& node, const Leaves& leaves);

}  // namespace reprise::runtime
