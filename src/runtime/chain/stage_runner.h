// A stage runs in three ways. A fast forward keeps nothing. A kept forward keeps what its backward
// needs, in one of several forms (saved/keep_less.h); right before the backward it may stop early,
// without its output (needed_calls.h). The backward is the third. The profile
// measures exactly the functions that the executor calls, so that a step does what was measured.
// There is one difference: where the plan runs several stages in a row, the executor lets autograd
// walk back through them in one pass (passes.h). In a pipeline the backward may come in two
// (split_backward.h).
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/chain/needed_calls.h"
#include "runtime/chain/saved/keep_less.h"
#include "runtime/device/compat.h"

namespace reprise::runtime::internal::chain {

// StageTraits are facts about a stage that its preparation found out (prepare.h).
struct StageTraits {
  bool random = false;                  // draws random numbers
  bool copies_input = false;            // changes its input in place, so it gets a copy
  bool fast_with_grad = false;          // has other bits without gradients, so it is recorded
  std::vector<bool> input_needs_grad;   // per tensor of x_i
  std::vector<bool> copies_output;      // per tensor of x_{i+1}: aliases the input, so it is copied
  std::vector<bool> output_needs_grad;  // per tensor of x_{i+1}
  std::vector<at::Tensor> buffers;      // of its modules; a run of some stage advances them
  std::vector<at::Tensor> still;        // of its modules; no run advances them
};

struct PreparedStage {
  Stage stage;
  StageTraits traits;
  std::vector<size_t> parameters;  // positions in the model's list of parameters, ascending
};

// Takes the gradient that reaches one tensor. Autograd would else go on to the node that made the
// tensor.
struct Sink final : torch::autograd::Node {
  at::Tensor value;

  explicit Sink(const at::Tensor& tensor) { add_input_metadata(tensor); }
  std::string name() const override { return "reprise::Sink"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    value = std::move(gradients[0]);
    return {};
  }
};

// Takes the gradients of all parameters of the stages of a pass.
struct ParameterSink final : torch::autograd::Node {
  const std::vector<size_t> positions;  // in the model's list of parameters, ascending
  std::vector<at::Tensor> values;
  int task = -1;               // the backward pass that the sink belongs to
  bool reached_apart = false;  // by another pass, which ran within it

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

// A PassUnderWay has the backward pass that runs through the graph with the hooks; null before and
// after.
struct PassUnderWay {
  BackwardPass* pass = nullptr;
};

// The ends of the recorded graph of one run of a stage, or of several consecutive stages. It holds
// what autograd saved, but not the output.
struct Kept {
  torch::autograd::edge_list roots;  // per output of the last stage; invalid: no gradient flows
  std::vector<device::SharedNode<Sink>> inputs;  // per input of the first; null: no gradient wanted
  device::SharedNode<ParameterSink> parameters;  // of all stages; null if they have none
  std::vector<torch::autograd::edge_list> roots_before;  // of the other stages, in forward order
  std::shared_ptr<PassUnderWay> under_way = {};          // null for a single stage
};

// The gradients of the model's parameters as far as they are complete, by position. A parameter of
// several stages has its running sum here.
using GradientBook = std::vector<at::Tensor>;

// Returns whether this thread runs a stage with a graph, forward or backward. Its parameters are
// then no leaf tensors.
bool within_stage();

// Runs x_i -> x_{i+1} and keeps nothing. The result does not require gradients.
Tensors run_fast(const PreparedStage& stage, const Tensors& input,
                 const std::vector<at::Tensor>& parameters);

// Begins a pass through stages that have these parameters (positions, ascending).
Kept begin_pass(std::vector<size_t> positions, const std::vector<at::Tensor>& parameters);

// Runs x_i -> x_{i+1} and keeps what the backward needs, in the form of one of the stage's options.
// `pass` is a pass that has just begun, or the Kept of the stage before, which made x_i. The result
// includes `pass`.
std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const SavedForm& saved_form, Kept pass);
// Does the same in a pass of its own.
std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const SavedForm& saved_form = {});

// Runs the stage as run_keep() does, and finds the calls that only its output needs.
NotedCalls note_calls(const PreparedStage& stage, const Tensors& input,
                      const std::vector<at::Tensor>& parameters, const SavedForm& saved_form,
                      c10::Device device);
// Does what run_keep() does, without those calls, and returns no output. Returns nothing if the
// stage runs other operations by now, or if the calls cannot be left out at the moment.
std::optional<Kept> run_stopped(const PreparedStage& stage, const Tensors& input,
                                const std::vector<at::Tensor>& parameters,
                                const SavedForm& saved_form, const NotedCalls& calls,
                                c10::Device device, Kept pass);

// Runs the stage with SavedForm::rebuild, but replaces nothing. Returns whether the tensors that
// would be made again have the same bits.
bool rebuilds_same_bits(const PreparedStage& stage, const Tensors& input,
                        const std::vector<at::Tensor>& parameters);

struct StageGradients {
  Tensors inputs;       // g_i of the first stage
  bool copies = false;  // the end of the pass took memory for parameter gradients
};

// Called between the backward of stage number + 1 of a pass and that of stage `number`, on
// autograd's thread.
using Crossing = std::function<void(size_t number)>;

// Runs g_j -> g_i through the stages i..j-1, which were kept in one pass, and adds to the book.
// `stage` is the last of them. Kept memory is given back while autograd walks through it, and
// gradients of outputs as soon as autograd has read them. The uses of a shared parameter are added
// to its running sum one after the other, in the order of plain training.
StageGradients run_backward(const PreparedStage& stage, Kept kept, Tensors gradients,
                            const std::vector<at::Tensor>& parameters, GradientBook& book,
                            const Crossing& crossing = {});

}  // namespace reprise::runtime::internal::chain
