#include "saved/keep_less.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "prepare.h"
#include "reprise/model/errors.h"
#include "saved/remade.h"
#include "saved/smaller.h"

namespace reprise::runtime {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

constexpr size_t kWorthwhile = 1024;  // bytes; below, the hooks are dearer than what they save

// A tensor that a node saved, and the node's output that it is.
using Output = std::pair<const Node*, uint32_t>;
struct Slot {
  SavedVariable* saved;
  at::Tensor tensor;
  Output output;
};

// All that the nodes of a graph have saved, node by node, each after those that it reads from.
class SavedTensors {
 public:
  explicit SavedTensors(const Leaves& leaves) : leaves_(leaves) {
    for (const auto& [node, tensor] : leaves) fixed_.insert(storage_of(tensor));
  }

  const SavedByNode& add(const NodePtr& node) {
    const auto [known, is_new] = nodes_.try_emplace(node.get());
    if (is_new) {
      known->second = look_at(*node, leaves_);
      held_.push_back(node);
      add_slots(node, known->second);
    }
    return known->second;
  }

  // All nodes from the roots on. Calls visit(node, what it saved).
  template <class Visit>
  void add_all(const torch::autograd::edge_list& roots, Visit&& visit) {
    std::vector<std::pair<NodePtr, bool>> stack;  // whether what a node reads from was added
    std::unordered_set<const Node*> seen;
    for (const Edge& root : roots) stack.emplace_back(root.function, false);
    while (!stack.empty()) {
      auto [node, is_ready] = std::move(stack.back());
      stack.pop_back();
      if (is_ready) {
        visit(node, add(node));
        continue;
      }
      if (!node || leaves_.contains(node.get()) || !seen.insert(node.get()).second) continue;
      stack.emplace_back(node, true);
      for (const Edge& next : node->next_edges()) stack.emplace_back(next.function, false);
    }
    std::erase_if(values_, [](const auto& value) { return value.second == nullptr; });
  }

  // These are there without the saved tensors.
  void set_outputs(const Tensors& outputs) {
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.grad_fn()) continue;
      fixed_.insert(storage_of(output));
      const auto value = values_.find({output.grad_fn().get(), output.output_nr()});
      if (value != values_.end() && value->second) value->second->keep(output);
    }
  }

  // Calls visit(slot, how its tensor can be made again) for each slot for which that is known, and forgets the slot
  // if the answer is true.
  template <class Visit>
  void for_remade(Visit&& visit) {
    fresh_.insert(fresh_.begin(), slots_.begin(), slots_.end());
    slots_.clear();
    for_new(visit);
  }
  // Of the nodes that were added since.
  template <class Visit>
  void for_new(Visit&& visit) {
    for (Slot& slot : fresh_) {
      const bool is_worthwhile =
          slot.tensor.nbytes() >= kWorthwhile && !fixed_.contains(storage_of(slot.tensor));
      const auto value = is_worthwhile ? value_of(behind_views(slot.output)) : nullptr;
      if (value && !value->is_kept() && visit(slot, value)) {
        auto& same = by_output_[slot.output];
        if (same.is_same(slot.tensor)) same.reset();
      } else {
        slots_.push_back(std::move(slot));
      }
    }
    fresh_.clear();
  }

  // The tensor as the node sees it; undefined if there is none, or somebody else looks after it.
  static at::Tensor tensor_of(const SavedVariable* saved, const NodePtr& node) {
    if (saved == nullptr || saved->has_hooks()) return {};
    try {
      at::Tensor tensor = saved->unpack(node);
      return tensor.defined() && tensor.layout() == at::kStrided ? tensor : at::Tensor();
    } catch (const c10::Error&) {
      return {};  // written to since: its node will say so, if its backward runs
    }
  }

 private:
  static const void* storage_of(const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                    : nullptr;
  }

  void add_slot(SavedVariable* saved, const at::Tensor& tensor, const Output& output) {
    fresh_.push_back({saved, tensor.detach(), output});
    by_output_.try_emplace(output, fresh_.back().tensor);
  }

  void add_slots(const NodePtr& node, const SavedByNode& seen) {
    for (SavedVariable* saved : seen.tensors) {
      const at::Tensor tensor = tensor_of(saved, node);
      if (!tensor.defined() || !tensor.grad_fn()) continue;
      add_slot(saved, tensor, {tensor.grad_fn().get(), tensor.output_nr()});
    }
    if (const at::Tensor operand = tensor_of(seen.operand, node); operand.defined()) {
      const Edge& edge = node->next_edge(0);
      if (edge.is_valid()) {
        add_slot(seen.operand, operand, {edge.function.get(), edge.input_nr});
      } else {
        ends_.emplace(node.get(), operand.detach());
      }
    }
    if (const at::Tensor result = tensor_of(seen.result, node); result.defined()) {
      add_slot(seen.result, result, {node.get(), 0});
    }
  }

  Output behind_views(Output output) const {
    for (auto seen = nodes_.find(output.first); seen != nodes_.end() && seen->second.is_view;
         seen = nodes_.find(output.first)) {
      const Edge& edge = seen->first->next_edge(0);
      output = {edge.function.get(), edge.input_nr};
    }
    return output;
  }

  // Null: neither kept nor made of what is.
  std::shared_ptr<Remade> value_of(const Output& output) {
    const auto known = values_.find(output);
    if (known != values_.end()) return known->second;
    std::shared_ptr<Remade> value = find_value(output);
    values_.emplace(output, value);
    return value;
  }

  std::shared_ptr<Remade> find_value(const Output& output) {
    const auto leaf = leaves_.find(output.first);
    if (leaf != leaves_.end()) {
      return leaf->second.defined() ? std::make_shared<Remade>(leaf->second) : nullptr;
    }
    const auto saved = by_output_.find(output);
    const bool is_saved = saved != by_output_.end() && saved->second.defined();
    const bool is_fixed = is_saved && fixed_.contains(storage_of(saved->second));
    const auto seen = nodes_.find(output.first);
    if (!is_fixed && output.second == 0 && seen != nodes_.end() && seen->second.remake) {
      const Edge& edge = seen->first->next_edge(0);
      const auto end = ends_.find(output.first);
      std::shared_ptr<Remade> operand = end != ends_.end()
                                            ? std::make_shared<Remade>(end->second)
                                            : value_of({edge.function.get(), edge.input_nr});
      if (operand) return std::make_shared<Remade>(std::move(operand), seen->second.remake);
    }
    return is_saved ? std::make_shared<Remade>(saved->second) : nullptr;
  }

  const Leaves leaves_;
  std::unordered_map<const Node*, SavedByNode> nodes_;
  std::vector<NodePtr> held_;  // the nodes, so that their addresses stay theirs
  std::vector<Slot> slots_, fresh_;
  std::map<Output, at::Tensor> by_output_;              // what slots hold, as it is
  std::unordered_map<const Node*, at::Tensor> ends_;  // operands of nodes to which no gradient flows
  std::map<Output, std::shared_ptr<Remade>> values_;
  std::unordered_set<const void*> fixed_;  // storages that are there without the saved tensors
};

void save_indices(const NodePtr& node, const SavedByNode& seen) {
  const at::Tensor indices = SavedTensors::tensor_of(seen.indices, node);
  if (!indices.defined() || indices.nbytes() < kWorthwhile) return;
  save_small_indices(*seen.indices, indices, seen.plane);
}

void save_factor(const NodePtr& node, const SavedByNode& seen) {
  at::Tensor factors = SavedTensors::tensor_of(seen.factor, node);
  if (!factors.defined() || factors.nbytes() < kWorthwhile) return;
  save_one_bit_mask(*seen.factor, std::move(factors));
}

bool wants(const AlternativeOptions& options, const char* name) {
  const auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return (options.only.empty() || has(options.only)) && !has(options.without);
}

}  // namespace

std::vector<NamedKeeping> keepings(const AlternativeOptions& allowed) {
  validate_for_chain(allowed);
  Keeping smaller{.one_bit_mask = wants(allowed, "one-bit-mask"),
                  .small_indices = wants(allowed, "small-indices")};
  Keeping rebuild = smaller;
  rebuild.rebuild = true;
  std::vector<NamedKeeping> all = {{"keep", {}}};
  if (smaller != Keeping{}) all.push_back({"smaller", smaller});
  if (wants(allowed, "rebuild")) all.push_back({"rebuild", rebuild});
  return all;
}

// What an operation's end leads to. RecordFunction's callbacks are plain functions, of one thread here.
struct Watch {
  SavedTensors saved;
  Keeping keeping;
  bool random;
  std::exception_ptr failed = nullptr;  // exceptions of callbacks are lost
  std::optional<at::CallbackHandle> handle = {};

  void node_is_there(const NodePtr& node) {
    const SavedByNode& seen = saved.add(node);
    if (keeping.small_indices && seen.indices != nullptr) save_indices(node, seen);
    if (keeping.one_bit_mask && random && seen.factor != nullptr) save_factor(node, seen);
  }

  static bool replace_slot(const Slot& slot, const std::shared_ptr<Remade>& value) {
    replace(*slot.saved, value);
    return true;
  }

  void operation_is_over(const at::RecordFunction& event) {
    bool any = false;
    const auto see = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.grad_fn()) return;
      node_is_there(tensor.grad_fn());
      any = true;
    };
    for (const c10::IValue& value : event.outputs()) {
      if (value.isTensor()) see(value.toTensor());
    }
    if (any && keeping.rebuild) saved.for_new(&replace_slot);
  }
};

namespace {

thread_local Watch* watching = nullptr;
thread_local bool listening = false;

void on_end(const at::RecordFunction& event, at::ObserverContext*) {
  if (watching == nullptr || watching->failed || !at::GradMode::is_enabled()) return;
  try {
    watching->operation_is_over(event);
  } catch (...) {
    watching->failed = std::current_exception();
  }
}

}  // namespace

KeepLess::KeepLess(const Leaves& leaves, const Keeping& keeping, bool random)
    : outer_(watching) {
  if (keeping != Keeping{}) {
    watch_ = std::make_unique<Watch>(Watch{SavedTensors(leaves), keeping, random});
    if (!std::exchange(listening, true)) {
      watch_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, on_end)
                                                      .needsOutputs(true)
                                                      .scopes({at::RecordScope::FUNCTION}));
    }
  }
  watching = watch_.get();
}

KeepLess::~KeepLess() {
  watching = outer_;
  if (!watch_ || !watch_->handle) return;
  at::removeCallback(*watch_->handle);
  listening = false;
}

void KeepLess::finish(const torch::autograd::edge_list& roots, const Tensors& outputs) {
  if (!watch_) return;
  if (watch_->failed) std::rethrow_exception(watch_->failed);
  watch_->saved.set_outputs(outputs);
  watch_->saved.add_all(
      roots, [&](const NodePtr& node, const SavedByNode&) { watch_->node_is_there(node); });
  if (watch_->keeping.rebuild) watch_->saved.for_remade(&Watch::replace_slot);
}

bool rebuilds_same_bits(const Leaves& leaves, const torch::autograd::edge_list& roots,
                        const Tensors& outputs) {
  bool same = true;
  SavedTensors saved(leaves);
  saved.set_outputs(outputs);
  saved.add_all(roots, [](const NodePtr&, const SavedByNode&) {});
  try {
    saved.for_remade([&](const Slot& slot, const std::shared_ptr<Remade>& value) {
      same = same && bitwise_equal(seen_as(value->make(), slot.tensor), slot.tensor);
      return false;
    });
  } catch (const InputError&) {  // a norm whose epsilon is not known
    return false;
  }
  return same;
}

}  // namespace reprise::runtime
