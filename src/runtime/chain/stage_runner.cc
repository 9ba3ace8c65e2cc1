#include "runtime/chain/stage_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/chain/autograd_pass.h"
#include "runtime/lockstep/shells.h"
#include "runtime/state/autocast.h"

namespace reprise::runtime::internal::chain {

using device::make_node;
using device::SharedNode;
using state::AutocastCacheOff;

namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;
namespace autograd = torch::autograd;

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

// Returns the inputs of the stage, by their nodes. There are none if the stage writes to its
// inputs.
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

// Something else takes the calls of operators at the moment.
struct TurnTaken {};

// Runs the stage while autograd records it. If `same_bits` is not null, it is set to whether the
// tensors that SavedForm::rebuild would make again have the same bits. If `taker` is not null, it
// gets the calls of operators; throws TurnTaken if it cannot.
std::pair<Tensors, Kept> record(const PreparedStage& stage, const Tensors& input,
                                const std::vector<at::Tensor>& parameters,
                                const SavedForm& saved_form, Kept kept, bool* same_bits = nullptr,
                                lockstep::Taker* taker = nullptr) {
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
    SavedForm form = saved_form;
    const size_t way = std::exchange(form.way, 0);
    const bool as_it_is = form == SavedForm{};
    KeepLess less(as_it_is ? Leaves() : leaves_of(stage, kept, given), form, same_bits);
    std::optional<lockstep::InterceptionIfFree> calls;
    if (taker != nullptr && !calls.emplace(*taker).intercepts()) throw TurnTaken();
    const auto& forward = way == 0 ? stage.stage.forward : stage.stage.ways[way - 1].forward;
    try {
      outputs = copy_aliases(stage.traits, forward(given));
    } catch (...) {
      less.rethrow();
      throw;
    }
    for (const at::Tensor& output : outputs) {
      const bool flows = output.defined() && output.requires_grad();
      kept.roots.push_back(flows ? autograd::impl::gradient_edge(output) : Edge());
    }
    less.finish(outputs);
  }
  return {detached(outputs), std::move(kept)};
}

}  // namespace

// A BackwardPass is one walk of autograd through the graphs of consecutive stages, from the last to
// the first.
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
    walk_back(feeder_, trigger_, kept_.parameters, parameters, /*keep_graph=*/false);
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

NotedCalls note_calls(const PreparedStage& stage, const Tensors& input,
                      const std::vector<at::Tensor>& parameters, const SavedForm& saved_form,
                      c10::Device device) {
  CallNoter noter(device);
  try {
    auto [outputs, kept] =
        record(stage, input, parameters, saved_form, begin_pass(stage.parameters, parameters),
               nullptr, &noter);
    outputs.clear();
    return noter.finish();
  } catch (const TurnTaken&) {
    return {};
  }
}

std::optional<Kept> run_stopped(const PreparedStage& stage, const Tensors& input,
                                const std::vector<at::Tensor>& parameters,
                                const SavedForm& saved_form, const NotedCalls& calls,
                                c10::Device device, Kept pass) {
  CallSkipper skipper(calls, device);
  try {
    auto [outputs, kept] =
        record(stage, input, parameters, saved_form, std::move(pass), nullptr, &skipper);
    outputs.clear();
    if (skipper.is_as_noted()) return std::move(kept);
  } catch (const TurnTaken&) {
  } catch (const BudgetError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    // A kernel, or the program where no operator is seen, may have read a result without bytes.
    const bool read =
        std::string_view(error.what()).find(lockstep::kNoBytes) != std::string_view::npos;
    if (!skipper.failed() && !read) throw;
  }
  return std::nullopt;
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
  result.copies = take_from_sink(stage, *sink, result.inputs, parameters, book);
  return result;
}

}  // namespace reprise::runtime::internal::chain
