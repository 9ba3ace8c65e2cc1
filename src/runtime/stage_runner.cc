#include "stage_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <set>

#include "autocast.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;
namespace autograd = torch::autograd;

thread_local int stages_running = 0;

// While it lives, graphs that use the parameters end in the sink instead of the nodes that fill .grad and
// call hooks. Those run once, when the whole step hands its gradients over. For autograd the parameters are
// results of the sink meanwhile, in the backward too, which asks what it has saved of them where they come
// from: leaf tensors would need a node each, and the engine takes longer over a node than over all else here.
class SinkScope {
 public:
  SinkScope(const std::vector<at::Tensor>& parameters, const SharedNode<ParameterSink>& sink)
      : parameters_(parameters) {
    ++stages_running;
    for (size_t p = 0; p < parameters.size(); ++p) {
      autograd::impl::set_gradient_edge(parameters[p],
                                        Edge(sink.pointer, static_cast<uint32_t>(p)));
    }
  }
  ~SinkScope() {
    --stages_running;
    for (const at::Tensor& parameter : parameters_) {
      autograd::impl::set_gradient_edge(parameter, Edge());
    }
  }
  SinkScope(const SinkScope&) = delete;
  SinkScope& operator=(const SinkScope&) = delete;

 private:
  const std::vector<at::Tensor>& parameters_;
};

std::vector<at::Tensor> own_parameters(const PreparedStage& stage,
                                       const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> own;
  own.reserve(stage.parameters.size());
  for (size_t position : stage.parameters) own.push_back(all[position]);
  return own;
}

// Starts a backward pass: hands out gradients that nobody else holds, so that autograd may free or
// overwrite them as early as in plain training.
struct Feeder final : autograd::Node {
  variable_list values;
  ParameterSink* sink = nullptr;  // where the pass ends

  explicit Feeder(const at::Tensor& trigger) { add_input_metadata(trigger); }
  void add(Edge edge, at::Tensor value) {
    add_next_edge(std::move(edge));
    values.push_back(std::move(value));
  }
  std::string name() const override { return "reprise::Feeder"; }
  variable_list apply(variable_list&&) override {
    if (sink != nullptr) sink->task = autograd::get_current_graph_task_id();
    return std::move(values);
  }
};

Tensors copy_aliases(const StageTraits& traits, Tensors outputs) {
  for (size_t e = 0; e < outputs.size() && e < traits.copies_output.size(); ++e) {
    if (traits.copies_output[e]) outputs[e] = outputs[e].clone();
  }
  return outputs;
}

Tensors detached(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach() : tensor);
  }
  return result;
}

bool shares_storage(const at::Tensor& tensor, const Tensors& others) {
  for (const at::Tensor& other : others) {
    if (other.defined() && other.storage().is_alias_of(tensor.storage())) return true;
  }
  return false;
}

// A gradient that .grad can take over as it is, by the rule of autograd's own accumulation: nobody else
// holds the tensor, and it has the parameter's layout. Its memory must not be that of g_i either, which
// the plan gives back earlier.
at::Tensor deliverable(at::Tensor gradient, const at::Tensor& parameter,
                       const Tensors& input_gradients) {
  if (!gradient.defined() || gradient.layout() != at::kStrided) return gradient;
  if (gradient.use_count() == 1 && autograd::utils::obeys_layout_contract(gradient, parameter) &&
      !shares_storage(gradient, input_gradients)) {
    return gradient;
  }
  return autograd::utils::clone_obey_contract(gradient, parameter).detach();
}

// What it was given is known as it was, unless the stage writes there.
Leaves leaves_of(const PreparedStage& stage, const Kept& kept, const Tensors& given) {
  Leaves leaves;
  for (size_t e = 0; e < given.size() && !stage.traits.copies_input; ++e) {
    if (kept.inputs[e].node) leaves.emplace(kept.inputs[e].node, Unchanged(given[e]));
  }
  return leaves;
}

// Runs the stage while autograd records it. `same_bits`: if not null, becomes whether what Keeping::rebuild would make
// again has the same bits.
std::pair<Tensors, Kept> record(const PreparedStage& stage, const Tensors& input,
                                const std::vector<at::Tensor>& parameters, const Keeping& keeping,
                                bool* same_bits = nullptr) {
  AutocastCacheOff no_cache;
  Kept kept;
  Tensors given = detached(input);
  kept.inputs.resize(given.size());
  for (size_t e = 0; e < given.size(); ++e) {
    if (stage.traits.copies_input) given[e] = given[e].clone();
    if (!stage.traits.input_needs_grad[e]) continue;
    kept.inputs[e] = make_node<Sink>(given[e]);
    // Not a leaf, so that a first operation in place is allowed, as after a real stage.
    autograd::impl::set_gradient_edge(given[e], Edge(kept.inputs[e].pointer, 0));
  }
  const std::vector<at::Tensor> own = own_parameters(stage, parameters);
  if (!own.empty()) kept.parameters = make_node<ParameterSink>(own);

  Tensors outputs;
  {
    at::AutoGradMode with_grad(true);
    SinkScope sinks(own, kept.parameters);
    const bool as_it_is = keeping == Keeping{};
    KeepLess less(as_it_is ? Leaves() : leaves_of(stage, kept, given), keeping, same_bits);
    outputs = copy_aliases(stage.traits, stage.stage.forward(given));
    for (const at::Tensor& output : outputs) {
      const bool flows = output.defined() && output.requires_grad();
      kept.roots.push_back(flows ? autograd::impl::gradient_edge(output) : Edge());
    }
    less.finish(outputs);
  }
  return {detached(outputs), std::move(kept)};
}

}  // namespace

bool within_stage() { return stages_running > 0; }

Tensors run_fast(const PreparedStage& stage, const Tensors& input,
                 const std::vector<at::Tensor>& parameters) {
  if (stage.traits.fast_with_grad) return run_keep(stage, input, parameters).first;
  AutocastCacheOff no_cache;
  at::NoGradGuard no_grad;
  Tensors given = detached(input);
  if (stage.traits.copies_input) {
    for (at::Tensor& tensor : given) tensor = tensor.clone();
  }
  return copy_aliases(stage.traits, stage.stage.forward(given));
}

std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const Keeping& keeping) {
  return record(stage, input, parameters, keeping);
}

bool rebuilds_same_bits(const PreparedStage& stage, const Tensors& input,
                        const std::vector<at::Tensor>& parameters) {
  bool same = false;
  record(stage, input, parameters, {.rebuild = true}, &same);
  return same;
}

Tensors run_backward(const PreparedStage& stage, Kept kept, Tensors gradients,
                     const std::vector<at::Tensor>& parameters, GradientBook& book) {
  AutocastCacheOff no_cache;
  const at::Tensor trigger = at::empty({0});
  SharedNode<Feeder> feeder = make_node<Feeder>(trigger);
  feeder.node->sink = kept.parameters.node;
  for (size_t p = 0; p < stage.parameters.size(); ++p) {
    at::Tensor& sum = book[stage.parameters[p]];
    const Edge edge(kept.parameters.pointer, static_cast<uint32_t>(p));
    if (sum.defined()) feeder.node->add(edge, std::move(sum));
    sum = at::Tensor();
  }
  for (size_t e = 0; e < kept.roots.size(); ++e) {
    if (!kept.roots[e].is_valid() || e >= gradients.size() || !gradients[e].defined()) continue;
    feeder.node->add(std::move(kept.roots[e]), std::move(gradients[e]));
  }
  gradients.clear();
  kept.roots.clear();
  if (feeder.node->num_outputs() > 0) {
    const std::vector<at::Tensor> own = own_parameters(stage, parameters);
    const SinkScope sinks(own, kept.parameters);
    autograd::Engine::get_default_engine().execute({Edge(feeder.pointer, 0)}, {trigger},
                                                   /*keep_graph=*/false, /*create_graph=*/false,
                                                   /*accumulate_grad=*/true);
  }
  feeder = {};
  Tensors result;
  for (SharedNode<Sink>& sink : kept.inputs) {
    result.push_back(sink.node ? std::move(sink.node->value) : at::Tensor());
  }
  if (!kept.parameters.node) return result;
  if (kept.parameters.node->reached_apart) {
    throw InputError("stage '" + stage.stage.name +
                     "' runs autograd by itself while its backward runs (torch.utils.checkpoint with "
                     "use_reentrant=True?), so that the order of sums is not plain training's: take "
                     "use_reentrant=False, or leave it out, since the plan decides what runs again");
  }
  std::vector<at::Tensor> values = std::move(kept.parameters.node->values);
  values.resize(stage.parameters.size());  // none, where no gradient came
  for (size_t p = 0; p < values.size(); ++p) {
    const size_t position = stage.parameters[p];
    book[position] = deliverable(std::move(values[p]), parameters[position], result);
  }
  return result;
}

void drain_backward_queue() {
  const at::Tensor trigger = at::empty({0});
  autograd::Engine::get_default_engine().execute({Edge(make_node<Feeder>(trigger).pointer, 0)},
                                                 {trigger}, false, false, true);
}

int64_t storage_bytes(const Tensors& tensors) {
  std::set<const void*> seen;
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
    total += (static_cast<int64_t>(storage.nbytes()) + 63) / 64 * 64;
  }
  return total;
}

int64_t uncounted_bytes(const Tensors& tensors) {
  Tensors foreign;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage() && tensor.device().is_cpu() &&
        tensor.storage().nbytes() > 0 && !cpu_allocator_owns(tensor.storage().data())) {
      foreign.push_back(tensor);
    }
  }
  return storage_bytes(foreign);
}

}  // namespace reprise::runtime
