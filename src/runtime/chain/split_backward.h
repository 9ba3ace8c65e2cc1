// This is the backward of a stage in two: first the gradients of its inputs, for which the part
// before waits, and later those of its weights, for which nobody waits (model/pipeline.h).
//
// | symbol | meaning                                                            |
// |--------|--------------------------------------------------------------------|
// | I      | the nodes of the stage's graph from which an input can be reached  |
// | cut    | a node of I that also hands gradients to a node outside I          |
//
// The first half walks through I and leaves out all edges to other nodes. So a cut computes only
// what goes on to the inputs, and the gradient that it got stays. The other nodes of I give their
// saved tensors back at once. The second half runs the cuts again, now without their edges within
// I, and then the nodes outside I. Both halves run their nodes in the order of the whole backward,
// so that sums of gradients are added up in the same order.
//
// Assumes that a node may run twice and computes the same gradient whether the others are wanted or
// not; measure_split.cc compares the bits. Does not handle: hooks on the gradients that a cut gets.
#pragma once

#include <vector>

#include "runtime/chain/stage_runner.h"

namespace reprise::runtime::internal::chain {

// A WeightWork has all that the second half needs. It holds the memory until then.
struct WeightWork {
  // A Cut is a cut, with the gradients that it got, and with the place for gradients of weights.
  struct Cut {
    device::NodePtr node;
    torch::autograd::variable_list gradients = {};
    torch::autograd::edge_list weights = {};  // invalid: not outside I
  };

  std::vector<Cut> cuts = {};
  torch::autograd::edge_list roots = {};  // those outside I
  Tensors root_gradients = {};
  device::SharedNode<ParameterSink> parameters = {};
  Tensors input = {};  // of the stage, if it is to stay
};

// The gradients of the inputs and what is left to do.
struct InputGradients {
  Tensors inputs;
  WeightWork later;
};

// Runs the first half for a stage that was kept in a pass of its own. Throws InputError, with the
// name of the stage, if the stage cannot be split.
InputGradients run_input_gradient(const PreparedStage& stage, Kept kept, Tensors gradients,
                                  const std::vector<at::Tensor>& parameters);

// Runs the second half. The book has no gradient of the stage's parameters before that.
void run_weight_gradient(const PreparedStage& stage, WeightWork work,
                         const std::vector<at::Tensor>& parameters, GradientBook& book);

}  // namespace reprise::runtime::internal::chain
