// The three ways in which a stage runs: forward without keeping anything, forward keeping what its
// backward needs (in one of several ways, saved/keep_less.h), backward. The profile measures exactly these functions and the executor calls exactly
// these functions, so that what was measured is what happens; but it lets autograd walk back through several stages in
// one pass where the plan runs them in a row (passes.h).
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/compat.h"
#include "reprise/runtime/stage.h"
#include "runtime/chain/saved/keep_less.h"

namespace reprise::runtime::internal::chain {

// What is known about a stage once it was prepared (prepare.h).
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
  std::vector<size_t> parameters;  // positions in the model's list of parameters, ascending
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

// The same for all parameters of the stages of a pass.
struct ParameterSink final : torch::autograd::Node {
  const std::vector<size_t> positions;  // in the model's list of parameters, ascending
  std::vector<at::Tensor> values;
  int task = -1;               // the backward pass that it belongs to
  bool reached_apart = false;  // by another one, which ran within it

  ParameterSink(std::vector<size_t> own, const std::vector<at::Tensor>& all)
      : positions(std::move(own)) {
    for (size_t position : positions) add_input_metadata(all[position]);
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

class BackwardPass;

// The pass under way through the graph that its hooks stand in; null before and after.
struct PassUnderWay {
  BackwardPass* pass = nullptr;
};

// The recorded graph of one run of a stage, or of several in a row, by its ends. Holds what autograd saved, not the
// output.
struct Kept {
  torch::autograd::edge_list roots;      // per output of the last; invalid where no gradient flows
  std::vector<device::SharedNode<Sink>> inputs;  // per input of the first; null where no gradient is wanted
  device::SharedNode<ParameterSink> parameters;  // of all of them; null if they have none
  std::vector<torch::autograd::edge_list>
      roots_before;                              // of the others, in the order of the forward
  std::shared_ptr<PassUnderWay> under_way = {};  // null for a single stage
};

// Gradients of the model's parameters as far as they are complete, by position. A parameter of several
// stages has its running sum here.
using GradientBook = std::vector<at::Tensor>;

// Whether this thread runs a stage, forward or backward, with a graph: its parameters are no leaf tensors then.
bool within_stage();

// x_i -> x_{i+1}, nothing kept. The result does not require gradients.
Tensors run_fast(const PreparedStage& stage, const Tensors& input,
                 const std::vector<at::Tensor>& parameters);

// The beginning of a pass through stages that have these parameters (positions, ascending).
Kept begin_pass(std::vector<size_t> positions, const std::vector<at::Tensor>& parameters);

// x_i -> x_{i+1} and what the backward needs, kept as one of the stage's options says. `pass`: as it began, or what
// the stage before has kept, which made x_i; what is returned holds that, too.
std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters, const SavedForm& saved_form,
                                  Kept pass);
// The same, as a pass of its own.
std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const SavedForm& saved_form = {});

// Runs the stage so, and says whether what SavedForm::rebuild would make again has the same bits.
bool rebuilds_same_bits(const PreparedStage& stage, const Tensors& input,
                        const std::vector<at::Tensor>& parameters);

struct StageGradients {
  Tensors inputs;       // g_i of the first stage
  bool copies = false;  // memory for gradients of parameters was taken when the pass was over
};

// Called when the backward of stage number + 1 of a pass is over, before that of stage `number` begins; on the thread
// that autograd runs on.
using Crossing = std::function<void(size_t number)>;

// g_j -> g_i, by the stages i..j-1 that were kept in one pass; adds to the book. `stage`: the last of them. Gives
// back what was kept while autograd walks it, and gradients of outputs as soon as autograd has read them. The uses of a
// shared parameter are added one after the other to its running sum, in the order of plain training.
StageGradients run_backward(const PreparedStage& stage, Kept kept, Tensors gradients,
                            const std::vector<at::Tensor>& parameters, GradientBook& book,
                            const Crossing& crossing = {});

}  // namespace reprise::runtime::internal::chain
