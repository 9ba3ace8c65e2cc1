#include "runtime/chain/stage_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <mutex>
#include <set>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/state/autocast.h"

namespace reprise::runtime::internal::chain {

using device::make_node;
using device::SharedNode;
using state::AutocastCacheOff;

namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;
namespace autograd = torch::autograd;

thread_local int stages_running = 0;

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
            const SharedNode<ParameterSink>& sink)
      : positions_(positions), all_(all) {
    ++stages_running;
    uint32_t place = 0;
    for (size_t position : positions) {
      while (sink.node->positions[place] != position) ++place;
      autograd::impl::set_gradient_edge(all[position], Edge(sink.pointer, place));
    }
  }
  ~SinkScope() {
    --stages_running;
    for (size_t position : positions_) autograd::impl::set_gradient_edge(all_[position], Edge());
  }
  SinkScope(const SinkScope&) = delete;
  SinkScope& operator=(const SinkScope&) = delete;

 private:
  const std::vector<size_t>& positions_;
  const std::vector<at::Tensor>& all_;
};

// Starts a backward pass. It hands out gradients that nobody else holds, so that autograd may free
// or overwrite them as early as in plain training.
struct Feeder final : autograd::Node {
  variable_list values;
  ParameterSink* sink = nullptr;  // the sink in which the pass ends

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

// Does the same as detach(), which takes several times longer as an operation of its own.
at::Tensor detached(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

Tensors detached(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.push_back(detached(tensor));
  return result;
}

bool shares_storage(const at::Tensor& tensor, const Tensors& others) {
  for (const at::Tensor& other : others) {
    if (other.defined() && other.storage().is_alias_of(tensor.storage())) return true;
  }
  return false;
}

// Returns a gradient that .grad can take over as it is, or else a copy. By the rule of autograd's
// own accumulation, nobody else may hold the tensor, and it must have the parameter's layout. Its
// memory must not be that of g_i either, because the plan frees g_i earlier.
at::Tensor deliverable(at::Tensor gradient, const at::Tensor& parameter,
                       const Tensors& input_gradients) {
  if (!gradient.defined() || gradient.layout() != at::kStrided) return gradient;
  if (gradient.use_count() == 1 && autograd::utils::obeys_layout_contract(gradient, parameter) &&
      !shares_storage(gradient, input_gradients)) {
    return gradient;
  }
  return autograd::utils::clone_obey_contract(gradient, parameter).detach();
}

// The inputs of the stage, by their nodes. There are none if the stage writes to its inputs.
Leaves leaves_of(const PreparedStage& stage, const Kept& kept, const Tensors& given) {
  Leaves leaves;
  for (size_t e = 0; e < given.size() && !stage.traits.copies_input; ++e) {
    if (kept.inputs[e].node) leaves.emplace(kept.inputs[e].node, Unchanged(given[e]));
  }
  return leaves;
}

// Makes the inputs of the stage results of our own nodes, as far as autograd knows. They are not
// leaves, so the first operation may be in place, as after a real stage.
void end_at_sinks(const PreparedStage& stage, const Tensors& given, Kept& kept) {
  kept.inputs.resize(given.size());
  for (size_t e = 0; e < given.size(); ++e) {
    if (!stage.traits.input_needs_grad[e]) continue;
    kept.inputs[e] = make_node<Sink>(given[e]);
    autograd::impl::set_gradient_edge(given[e], Edge(kept.inputs[e].pointer, 0));
  }
}

// Runs when a gradient reaches the stage before. Autograd prefers nodes that were made later, so
// nothing is left to do in the stage behind at that moment.
class CrossingHook final : public autograd::FunctionPreHook {
 public:
  CrossingHook(size_t number, std::shared_ptr<PassUnderWay> under_way)
      : number_(number), under_way_(std::move(under_way)) {}
  variable_list operator()(const variable_list& gradients) override;

 private:
  const size_t number_;
  const std::shared_ptr<PassUnderWay> under_way_;
};

// Makes the inputs of the stage the outputs of the stage before, as far as autograd knows.
void go_on(const PreparedStage& stage, const Tensors& given, Kept& kept) {
  if (!kept.under_way) kept.under_way = std::make_shared<PassUnderWay>();
  const size_t number = kept.roots_before.size();
  for (size_t e = 0; e < given.size(); ++e) {
    if (!stage.traits.input_needs_grad[e]) continue;
    const Edge& root = kept.roots[e];
    // The hook goes before the user's hooks on the tensor, which belong to the stage that returned
    // it.
    auto& hooks = root.function->tensor_pre_hooks();
    hooks.insert(hooks.begin(), std::make_unique<CrossingHook>(number, kept.under_way));
    autograd::impl::set_gradient_edge(given[e], root);
  }
  kept.roots_before.push_back(std::move(kept.roots));
  kept.roots.clear();
}

// Runs the stage while autograd records it. If `same_bits` is not null, it is set to whether the
// tensors that SavedForm::rebuild would make again have the same bits.
std::pair<Tensors, Kept> record(const PreparedStage& stage, const Tensors& input,
                                const std::vector<at::Tensor>& parameters,
                                const SavedForm& saved_form, Kept kept, bool* same_bits = nullptr) {
  AutocastCacheOff no_cache;
  Tensors given = detached(input);
  if (stage.traits.copies_input) {
    for (at::Tensor& tensor : given) tensor = tensor.clone();
  }
  if (kept.roots.empty()) {
    end_at_sinks(stage, given, kept);
  } else {
    go_on(stage, given, kept);
  }
  Tensors outputs;
  {
    at::AutoGradMode with_grad(true);
    SinkScope sinks(stage.parameters, parameters, kept.parameters);
    const bool as_it_is = saved_form == SavedForm{};
    KeepLess less(as_it_is ? Leaves() : leaves_of(stage, kept, given), saved_form, same_bits);
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

// One walk of autograd through the graphs of consecutive stages, from the last to the first.
class BackwardPass {
 public:
  BackwardPass(Kept& kept, const Crossing& crossing)
      : kept_(kept),
        crossing_(crossing),
        last_(kept.roots_before.size()),
        feeder_(make_node<Feeder>(trigger_)) {
    if (kept_.under_way) kept_.under_way->pass = this;
  }
  ~BackwardPass() {
    if (kept_.under_way) kept_.under_way->pass = nullptr;
  }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  void feed(Edge edge, at::Tensor value) { feeder_.node->add(std::move(edge), std::move(value)); }

  void run(const std::vector<at::Tensor>& parameters) {
    if (feeder_.node->num_outputs() > 0) walk(parameters);
    cross(0);  // the stages that no gradient reached
  }

  // Ends the stages behind stage `number`: drops their graphs, with all that the nodes hold.
  void cross(size_t number) {
    const std::scoped_lock lock(mutex_);  // autograd has a thread for each kind of device
    while (last_ > number) {
      if (last_ < kept_.roots_before.size()) {
        kept_.roots_before[last_].clear();
      } else {
        feeder_.node->set_next_edges({});
      }
      --last_;
      if (crossing_) crossing_(last_);
    }
  }

 private:
  void walk(const std::vector<at::Tensor>& parameters) {
    static const std::vector<size_t> none;
    const SharedNode<ParameterSink>& sink = kept_.parameters;
    feeder_.node->sink = sink.node;
    const SinkScope sinks(sink.node ? sink.node->positions : none, parameters, sink);
    autograd::Engine::get_default_engine().execute({Edge(feeder_.pointer, 0)}, {trigger_},
                                                   /*keep_graph=*/false, /*create_graph=*/false,
                                                   /*accumulate_grad=*/true);
  }

  Kept& kept_;
  const Crossing& crossing_;
  std::mutex mutex_;
  size_t last_;  // the last stage of the pass that is not done
  const at::Tensor trigger_ = at::empty({0});
  SharedNode<Feeder> feeder_;
};

namespace {

variable_list CrossingHook::operator()(const variable_list& gradients) {
  if (under_way_->pass != nullptr) under_way_->pass->cross(number_);
  return gradients;
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

Kept begin_pass(std::vector<size_t> positions, const std::vector<at::Tensor>& parameters) {
  Kept kept;
  if (!positions.empty()) {
    kept.parameters = make_node<ParameterSink>(std::move(positions), parameters);
  }
  return kept;
}

std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const SavedForm& saved_form, Kept pass) {
  return record(stage, input, parameters, saved_form, std::move(pass));
}

std::pair<Tensors, Kept> run_keep(const PreparedStage& stage, const Tensors& input,
                                  const std::vector<at::Tensor>& parameters,
                                  const SavedForm& saved_form) {
  return record(stage, input, parameters, saved_form, begin_pass(stage.parameters, parameters));
}

bool rebuilds_same_bits(const PreparedStage& stage, const Tensors& input,
                        const std::vector<at::Tensor>& parameters) {
  bool same = false;
  record(stage, input, parameters, {.rebuild = true}, begin_pass(stage.parameters, parameters),
         &same);
  return same;
}

StageGradients run_backward(const PreparedStage& stage, Kept kept, Tensors gradients,
                            const std::vector<at::Tensor>& parameters, GradientBook& book,
                            const Crossing& crossing) {
  AutocastCacheOff no_cache;
  ParameterSink* const sink = kept.parameters.node;
  {
    BackwardPass pass(kept, crossing);
    for (size_t p = 0; sink != nullptr && p < sink->positions.size(); ++p) {
      at::Tensor& sum = book[sink->positions[p]];
      if (!sum.defined()) continue;
      pass.feed(Edge(kept.parameters.pointer, static_cast<uint32_t>(p)), std::move(sum));
      sum = at::Tensor();
    }
    for (size_t e = 0; e < kept.roots.size(); ++e) {
      if (!kept.roots[e].is_valid() || e >= gradients.size() || !gradients[e].defined()) continue;
      pass.feed(std::move(kept.roots[e]), std::move(gradients[e]));
    }
    gradients.clear();
    kept.roots.clear();
    pass.run(parameters);
  }
  kept.roots_before.clear();  // drops the graphs behind them, too
  StageGradients result;
  for (SharedNode<Sink>& input : kept.inputs) {
    result.inputs.push_back(input.node ? std::move(input.node->value) : at::Tensor());
  }
  if (sink == nullptr) return result;
  if (sink->reached_apart) {
    throw InputError(
        "stage '" + stage.stage.name +
        "' runs autograd by itself while its backward runs (torch.utils.checkpoint with "
        "use_reentrant=True?), so that the order of sums is not plain training's: take "
        "use_reentrant=False, or leave it out, since the plan decides what runs again");
  }
  std::vector<at::Tensor> values = std::move(sink->values);
  values.resize(sink->positions.size());  // undefined where no gradient came
  for (size_t p = 0; p < values.size(); ++p) {
    const size_t position = sink->positions[p];
    const void* const made = values[p].defined() ? values[p].unsafeGetTensorImpl() : nullptr;
    book[position] = deliverable(std::move(values[p]), parameters[position], result.inputs);
    result.copies |= book[position].defined() && book[position].unsafeGetTensorImpl() != made;
  }
  return result;
}

}  // namespace reprise::runtime::internal::chain
