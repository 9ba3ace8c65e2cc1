// A loss sink is the place where the gradients of a loss arrive at a chain of stages.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/measure.h"
#include "reprise/runtime/stage.h"
#include "runtime/chain/prepare.h"
#include "runtime/device/compat.h"

namespace reprise::runtime::internal::chain {

// Puts the tensors of several branches into one list, and takes such a list apart.
Tensors together(const std::vector<Tensors>& branches);
std::vector<Tensors> apart(Tensors tensors, const std::vector<size_t>& counts);

// Returns the gradients whose memory those of another branch have, too. The sum of two outputs hands
// the same tensor to both branches, for example. This memory stays until the end of the step.
Tensors shared_between(const std::vector<Tensors>& branches);

// Returns whether another tensor of the list has the memory of this one, or is it.
bool is_among(const at::Tensor& tensor, const Tensors& others);

// Takes the gradients where the chain would take them, and the level of memory at that moment.
struct LossSink final : torch::autograd::Node {
  c10::Device device;
  // The backward of the tail, which runs before the gradients are taken.
  std::function<Tensors(Tensors)> tail = {};
  std::vector<size_t> counts;      // of tensors, by branch
  std::vector<Tensors> gradients;  // by branch
  int64_t level = 0, peak = 0;
  // By branch: whether somebody else holds the memory of a gradient until the end of the step, as
  // autograd holds the 1 that a sum expands, and what several branches share.
  std::vector<std::vector<bool>> held;
  std::vector<int64_t> own;  // by branch: bytes of the other gradients
  bool reached = false;

  LossSink(c10::Device d, std::vector<size_t> c) : device(d), counts(std::move(c)) {}
  std::string name() const override { return "reprise::LossSink"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& inputs) override;
};

// Runs the tail and the loss on the outputs `x` of all branches. The backward half ends in the sink,
// in front of which it runs that of the tail. `output_held`: the caller still holds what the tail
// returned. `book` gets the gradients of the tail's parameters. Throws InputError if the loss is not
// one number that has a gradient.
void run_to_sink(const PreparedModel& model, Tensors x, const Loss& loss, bool output_held,
                 GradientBook& book, const device::SharedNode<LossSink>& sink);

}  // namespace reprise::runtime::internal::chain
