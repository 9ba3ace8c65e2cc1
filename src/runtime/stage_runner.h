// The three ways in which a stage runs: forward without keeping anything, forward keeping what its
// backward needs (in one of several ways, saved/keep_less.h), backward. The profile measures exactly these functions and the executor calls exactly
// these functions, so that what was measured is what happens.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "compat.h"
#include "reprise/runtime/stage.h"
#include "saved/keep_less.h"

namespace reprise::runtime {

// What is known about a stage once it was observed (observe.h).
struct StageTraits {
  bool random = false;          // draws random numbers
  bool copies_input = false;    // changes its input in place: it is given a copy
  bool fast_with_grad = false;  // without gradients its result differs in bits: record, then drop
  std::vector<bool> input_needs_grad;   // per tensor of x_i
  std::vector<bool> copies_output;      // per tensor of x_{i+1}: aliases the input, is copied
  std::vector<bool> output_needs_grad;  // per tensor of x_{i+1}
  std::vector<at::Tensor> buffers;      // of its modules, that a run of any stage advances
  std::vector<at::Tensor> still;        // of its modules, that no run advances
};

struct PreparedStage {
  Stage stage;
  StageTraits traits;
  std::vector<size_t> parameters;  // positions in the model's list of parameters, in module order
};

// Takes the gradient that reaches one tensor, where autograd would go on to what made it.
struct Sink final : torch::autograd::Node {
  at::Tensor value;

  explicit Sink(const at::Tensor& tensor) { add_input_metadata(tensor); }
  std::string name() const override { return "reprise::Sink"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    value = std::move(gradients[0]);
    return {};
  }
};

// The same for all parameters of a stage.
struct ParameterSink final : torch::autograd::Node {
  std::vector<at::Tensor> values;
  int task = -1;              // the backward pass that it belongs to
  bool reached_apart = false;  // by another one, which ran within it

  explicit ParameterSink(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) add_input_metadata(parameter);
  }
  std::string name() const override { return "reprise::ParameterSink"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (torch::autograd::get_current_graph_task_id() == task) {
      values = std::move(gradients);
    } else {
      reached_apart = true;
    }
    return {};
  }
};

// The recorded graph of one run of a stage, by its ends. Holds what autograd saved, not the output.
struct Kept {
  torch::autograd::edge_list roots;      // per output; invalid where no gradient flows
  std::vector<SharedNode<Sink>> inputs;  // per input; null where no gradient is wanted
  SharedNode<ParameterSink> parameters;  // null if the stage has none
};

// Gradients of the model's parameters as far as they are complete, by position. A parameter of several
// stages has its running sum here.
using GradientBook = std::vector<at::Tensor>;

// Whether this thread runs a stage, forward or backward, with a graph: its parameters are no leaf tensors then.
bool within_stage();

// x_i -> x_{i+1}, nothing kept. The result does not require gradients.
Tensors run_fast(const PreparedStage& stage, const Tensors& input,
                 const std::vector<at::Tensor>& parameters);

// x_i -> x_{i+1} and what the backward needs, kept as one of the stage's options says.
std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const Keeping& keeping = {});

// Runs the stage so, and says whether what Keeping::rebuild would make again has the same bits.
bool rebuilds_same_bits(const PreparedStage& stage, const Tensors& input,
                        const std::vector<at::Tensor>& parameters);

// g_{i+1} -> g_i; adds to the book. Gives back what was kept while autograd walks it, and g_{i+1} as soon
// as autograd has read it. The uses of a shared parameter are added one after the other to its running
// sum, in the order of plain training.
Tensors run_backward(const PreparedStage& stage, Kept kept, Tensors gradients,
                     const std::vector<at::Tensor>& parameters, GradientBook& book);

// A backward pass that ended in an exception leaves what it had not come to, with the gradients in it, in
// the queue of this thread until another pass runs. Runs an empty one.
void drain_backward_queue();

// Bytes of the distinct storages of the tensors, as the allocator counts them.
int64_t storage_bytes(const Tensors& tensors);

// Those of them on the CPU that the counting allocator did not hand out.
int64_t uncounted_bytes(const Tensors& tensors);

}  // namespace reprise::runtime
