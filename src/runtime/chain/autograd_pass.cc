#include "runtime/chain/autograd_pass.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include "reprise/model/errors.h"
#include "runtime/chain/loss_sink.h"

namespace reprise::runtime::internal::chain {

using device::SharedNode;

namespace {

namespace autograd = torch::autograd;
using torch::autograd::Edge;

thread_local int stages_running = 0;

// Returns a gradient that .grad can take over as it is, or else a copy. By the rule of autograd's
// own accumulation, nobody else may hold the tensor, and it must have the parameter's layout. Its
// memory must not be that of g_i either, because the plan frees g_i earlier.
at::Tensor deliverable(at::Tensor gradient, const at::Tensor& parameter,
                       const Tensors& input_gradients) {
  if (!gradient.defined() || gradient.layout() != at::kStrided) return gradient;
  if (gradient.use_count() == 1 && autograd::utils::obeys_layout_contract(gradient, parameter) &&
      !is_among(gradient, input_gradients)) {
    return gradient;
  }
  return autograd::utils::clone_obey_contract(gradient, parameter).detach();
}

}  // namespace

bool within_stage() { return stages_running > 0; }

SinkScope::SinkScope(const std::vector<size_t>& positions, const std::vector<at::Tensor>& all,
                     const SharedNode<ParameterSink>& sink)
    : positions_(positions), all_(all) {
  ++stages_running;
  uint32_t place = 0;
  for (size_t position : positions) {
    while (sink.node->positions[place] != position) ++place;
    autograd::impl::set_gradient_edge(all[position], Edge(sink.pointer, place));
  }
}

SinkScope::~SinkScope() {
  --stages_running;
  for (size_t position : positions_) autograd::impl::set_gradient_edge(all_[position], Edge());
}

autograd::variable_list Feeder::apply(autograd::variable_list&&) {
  if (sink != nullptr) sink->task = autograd::get_current_graph_task_id();
  return std::move(values);
}

void walk_back(const SharedNode<Feeder>& feeder, const at::Tensor& trigger,
               const SharedNode<ParameterSink>& sink, const std::vector<at::Tensor>& parameters,
               bool keep_graph) {
  static const std::vector<size_t> none;
  if (feeder.node->num_outputs() == 0) return;
  feeder.node->sink = sink.node;
  const SinkScope sinks(sink.node ? sink.node->positions : none, parameters, sink);
  autograd::Engine::get_default_engine().execute({Edge(feeder.pointer, 0)}, {trigger}, keep_graph,
                                                 /*create_graph=*/false, /*accumulate_grad=*/true);
}

bool take_from_sink(const PreparedStage& stage, ParameterSink& sink, const Tensors& inputs,
                    const std::vector<at::Tensor>& parameters, GradientBook& book) {
  if (sink.reached_apart) {
    throw InputError(
        "stage '" + stage.stage.name +
        "' runs autograd by itself while its backward runs (torch.utils.checkpoint with "
        "use_reentrant=True?), so that the order of sums is not plain training's: take "
        "use_reentrant=False, or leave it out, since the plan decides what runs again");
  }
  bool copies = false;
  std::vector<at::Tensor> values = std::move(sink.values);
  values.resize(sink.positions.size());  // undefined where no gradient came
  for (size_t p = 0; p < values.size(); ++p) {
    const size_t position = sink.positions[p];
    const void* const made = values[p].defined() ? values[p].unsafeGetTensorImpl() : nullptr;
    book[position] = deliverable(std::move(values[p]), parameters[position], inputs);
    copies |= book[position].defined() && book[position].unsafeGetTensorImpl() != made;
  }
  return copies;
}

}  // namespace reprise::runtime::internal::chain
