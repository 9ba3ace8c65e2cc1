#include "runtime/chain/split_backward.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/chain/autograd_pass.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/state/autocast.h"

namespace reprise::runtime::internal::chain {

using device::make_node;
using device::NodePtr;
using state::AutocastCacheOff;

namespace {

namespace autograd = torch::autograd;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Notes the gradients that a node gets.
class NoteGradients final : public autograd::FunctionPreHook {
 public:
  explicit NoteGradients(variable_list& into) : into_(into) {}
  variable_list operator()(const variable_list& gradients) override {
    into_ = gradients;
    return gradients;
  }

 private:
  variable_list& into_;
};

// Gives back what a node has saved when it has run.
class ReleaseSaved final : public autograd::FunctionPostHook {
 public:
  explicit ReleaseSaved(Node& node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node_.release_variables();
    return outputs;
  }

 private:
  Node& node_;
};

// ReachingInputs are the nodes of I, with the sinks of the inputs.
class ReachingInputs {
 public:
  explicit ReachingInputs(const Kept& kept) {
    for (const auto& input : kept.inputs) {
      if (input.node != nullptr) reaches_.emplace(input.node, true);
    }
    if (kept.parameters.node != nullptr) reaches_.emplace(kept.parameters.node, false);
    for (const Edge& root : kept.roots) {
      if (root.is_valid()) visit(root.function);
    }
  }

  bool has(const Edge& edge) const { return reaches_.at(edge.function.get()); }
  // Without the sinks, in the order of the visit.
  const std::vector<NodePtr>& nodes() const { return nodes_; }

 private:
  // Graphs may be deep, so the visit has a stack of its own.
  void visit(const NodePtr& root) {
    struct Step {
      NodePtr node;
      size_t next = 0;
    };
    std::vector<Step> path;
    const auto enter = [&](const NodePtr& node) {
      if (reaches_.emplace(node.get(), false).second) path.push_back({node});
    };
    enter(root);
    while (!path.empty()) {
      Step& top = path.back();
      const edge_list& edges = top.node->next_edges();
      if (top.next < edges.size()) {
        const Edge& edge = edges[top.next++];
        if (edge.is_valid()) enter(edge.function);  // may end the life of `top`
        continue;
      }
      bool reaches = false;
      for (const Edge& edge : edges) reaches = reaches || (edge.is_valid() && has(edge));
      reaches_[top.node.get()] = reaches;
      if (reaches) nodes_.push_back(top.node);
      path.pop_back();
    }
  }

  std::unordered_map<const Node*, bool> reaches_;
  std::vector<NodePtr> nodes_;
};

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// Takes the edges out of I away from every cut and returns the cuts.
std::vector<WeightWork::Cut> make_cuts(const PreparedStage& stage, const ReachingInputs& reaching) {
  std::vector<WeightWork::Cut> cuts;
  for (const NodePtr& node : reaching.nodes()) {
    edge_list weights(node->num_outputs());
    bool any = false;
    for (size_t e = 0; e < weights.size(); ++e) {
      Edge& edge = node->next_edges()[e];
      if (!edge.is_valid() || reaching.has(edge)) continue;
      weights[e] = std::exchange(edge, Edge());
      any = true;
    }
    if (!any) continue;
    if (has_hooks(*node)) {
      throw InputError("the backward of stage '" + stage.stage.name +
                       "' cannot be split: a hook looks at a gradient inside it, and would see it "
                       "twice");
    }
    cuts.push_back({.node = node, .weights = std::move(weights)});
  }
  return cuts;
}

// While it lives, cuts note their gradients, and other nodes give back what they have saved.
class SplitHooks {
 public:
  SplitHooks(std::vector<WeightWork::Cut>& cuts, const ReachingInputs& reaching) : cuts_(cuts) {
    std::unordered_map<const Node*, variable_list*> notes;
    for (WeightWork::Cut& cut : cuts) notes.emplace(cut.node.get(), &cut.gradients);
    for (const NodePtr& node : reaching.nodes()) {
      if (const auto cut = notes.find(node.get()); cut != notes.end()) {
        node->add_pre_hook(std::make_unique<NoteGradients>(*cut->second));
      } else {
        node->add_post_hook(std::make_unique<ReleaseSaved>(*node));
      }
    }
  }
  ~SplitHooks() {
    for (const WeightWork::Cut& cut : cuts_) cut.node->pre_hooks().clear();
  }
  SplitHooks(const SplitHooks&) = delete;
  SplitHooks& operator=(const SplitHooks&) = delete;

 private:
  std::vector<WeightWork::Cut>& cuts_;
};

// The memory of the gradients of the inputs goes earlier than that of the work.
void copy_what_is_shared(Tensors& gradients, const Tensors& inputs) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.has_storage() && is_among(gradient, inputs)) {
      gradient = gradient.clone();
    }
  }
}

}  // namespace

InputGradients run_input_gradient(const PreparedStage& stage, Kept kept, Tensors gradients,
                                  const std::vector<at::Tensor>& parameters) {
  AutocastCacheOff no_cache;
  InputGradients result;
  WeightWork& later = result.later;
  {
    const ReachingInputs reaching(kept);
    later.cuts = make_cuts(stage, reaching);
    const at::Tensor trigger = at::empty({0});
    const auto feeder = make_node<Feeder>(trigger);
    for (size_t e = 0; e < kept.roots.size(); ++e) {
      if (!kept.roots[e].is_valid() || e >= gradients.size() || !gradients[e].defined()) continue;
      if (reaching.has(kept.roots[e])) {
        feeder.node->add(std::move(kept.roots[e]), std::move(gradients[e]));
      } else {
        later.roots.push_back(std::move(kept.roots[e]));
        later.root_gradients.push_back(std::move(gradients[e]));
      }
    }
    gradients.clear();
    kept.roots.clear();
    const SplitHooks hooks(later.cuts, reaching);
    walk_back(feeder, trigger, kept.parameters, parameters, /*keep_graph=*/true);
  }
  // Cuts that no gradient has reached have nothing to do.
  std::erase_if(later.cuts, [](const WeightWork::Cut& cut) { return cut.gradients.empty(); });
  // Now the cuts hold none of the other nodes of I.
  for (WeightWork::Cut& cut : later.cuts) {
    cut.node->next_edges().assign(cut.weights.size(), Edge());
  }
  for (auto& input : kept.inputs) {
    result.inputs.push_back(input.node ? std::move(input.node->value) : at::Tensor());
  }
  later.parameters = std::move(kept.parameters);
  for (WeightWork::Cut& cut : later.cuts) copy_what_is_shared(cut.gradients, result.inputs);
  copy_what_is_shared(later.root_gradients, result.inputs);
  return result;
}

void run_weight_gradient(const PreparedStage& stage, WeightWork work,
                         const std::vector<at::Tensor>& parameters, GradientBook& book) {
  AutocastCacheOff no_cache;
  if (work.parameters.node == nullptr) return;
  {
    const at::Tensor trigger = at::empty({0});
    const auto feeder = make_node<Feeder>(trigger);
    for (WeightWork::Cut& cut : work.cuts) {
      cut.node->next_edges() = std::move(cut.weights);
      for (size_t k = 0; k < cut.gradients.size(); ++k) {
        if (!cut.gradients[k].defined()) continue;
        feeder.node->add(Edge(cut.node, static_cast<uint32_t>(k)), std::move(cut.gradients[k]));
      }
    }
    for (size_t r = 0; r < work.roots.size(); ++r) {
      feeder.node->add(std::move(work.roots[r]), std::move(work.root_gradients[r]));
    }
    work.cuts.clear();
    work.roots.clear();
    walk_back(feeder, trigger, work.parameters, parameters, /*keep_graph=*/false);
  }
  take_from_sink(stage, *work.parameters.node, {}, parameters, book);
}

}  // namespace reprise::runtime::internal::chain
