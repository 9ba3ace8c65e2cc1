// All passes of autograd through the graphs of stages share these functions (stage_runner.cc,
// split_backward.cc).
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/chain/stage_runner.h"
#include "runtime/device/compat.h"

namespace reprise::runtime::internal::chain {

// While a SinkScope lives, graphs that use the parameters end in the sink, and not in the nodes
// that fill .grad and call hooks. Those nodes run once, when the whole step hands its gradients
// over. For autograd the parameters are results of the sink meanwhile. This must hold in the
// backward, too, because the backward asks its saved parameters where they come from. Leaf tensors
// would need a node each, and the engine takes longer over a node than over everything else here.
class SinkScope {
 public:
  // `positions` are those of the stage's parameters, ascending. The sink has all of them, and
  // perhaps more.
  SinkScope(const std::vector<size_t>& positions, const std::vector<at::Tensor>& all,
            const device::SharedNode<ParameterSink>& sink);
  ~SinkScope();
  SinkScope(const SinkScope&) = delete;
  SinkScope& operator=(const SinkScope&) = delete;

 private:
  const std::vector<size_t>& positions_;
  const std::vector<at::Tensor>& all_;
};

// Starts a backward pass. It hands out gradients that nobody else holds, so that autograd may free
// or overwrite them as early as in plain training.
struct Feeder final : torch::autograd::Node {
  torch::autograd::variable_list values;
  ParameterSink* sink = nullptr;  // the sink in which the pass ends

  explicit Feeder(const at::Tensor& trigger) { add_input_metadata(trigger); }
  void add(torch::autograd::Edge edge, at::Tensor value) {
    add_next_edge(std::move(edge));
    values.push_back(std::move(value));
  }
  std::string name() const override { return "reprise::Feeder"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override;
};

// Walks from the feeder to the sinks. Does nothing if nothing was fed. `keep_graph`: nodes keep
// what they have saved.
void walk_back(const device::SharedNode<Feeder>& feeder, const at::Tensor& trigger,
               const device::SharedNode<ParameterSink>& sink,
               const std::vector<at::Tensor>& parameters, bool keep_graph);

// Moves the gradients that the pass has left in the sink to the book. Returns whether memory was
// taken for copies. Throws InputError for a stage that ran a pass of its own within this one.
// `inputs` are the gradients of the inputs, whose memory goes earlier.
bool take_from_sink(const PreparedStage& stage, ParameterSink& sink, const Tensors& inputs,
                    const std::vector<at::Tensor>& parameters, GradientBook& book);

}  // namespace reprise::runtime::internal::chain
