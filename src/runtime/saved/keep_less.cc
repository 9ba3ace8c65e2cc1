#include "saved/keep_less.h"

#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <map>
#include <unordered_set>

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
struct Slot {
  SavedVariable* saved;
  at::Tensor tensor;
};
using Output = std::pair<const Node*, uint32_t>;

// All that the nodes of a recorded graph have saved.
class SavedTensors {
 public:
  explicit SavedTensors(const Recorded& recorded) : recorded_(recorded) {
    for (const at::Tensor& output : recorded.outputs) fixed_.insert(storage_of(output));
    for (const auto& [node, tensor] : recorded.leaves) fixed_.insert(storage_of(tensor));
    std::vector<Edge> stack = recorded.roots;
    while (!stack.empty()) {
      const Edge edge = std::move(stack.back());
      stack.pop_back();
      Node* node = edge.function.get();
      if (node == nullptr || recorded.leaves.contains(node) || nodes_.contains(node)) continue;
      nodes_.emplace(node, look_at(*node, recorded.leaves));
      order_.push_back(edge.function);
      for (const Edge& next : node->next_edges()) stack.push_back(next);
    }
    for (const NodePtr& node : order_) add_slots(node);
  }

  // Calls visit(node, what it saved).
  template <class Visit>
  void for_nodes(Visit&& visit) const {
    for (const NodePtr& node : order_) visit(node, nodes_.at(node.get()));
  }

  // Calls visit(slot, how its tensor can be made again) for each slot for which that is known.
  template <class Visit>
  void for_remade(Visit&& visit) {
    for (auto& [output, slots] : slots_) {
      for (Slot& slot : slots) {
        if (slot.tensor.nbytes() < kWorthwhile || fixed_.contains(storage_of(slot.tensor))) continue;
        const std::shared_ptr<Remade> value = value_of(behind_views(output));
        if (value && !value->is_kept()) visit(slot, value);
      }
    }
  }

  // The tensor as the node sees it; undefined if there is none, or somebody else looks after it.
  static at::Tensor tensor_of(const SavedVariable* saved, const NodePtr& node) {
    if (saved == nullptr || saved->has_hooks()) return {};
    try {
      return saved->unpack(node);
    } catch (const c10::Error&) {
      return {};  // written to since: its node will say so, if its backward runs
    }
  }

 private:
  static const void* storage_of(const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                    : nullptr;
  }

  void add_slots(const NodePtr& node) {
    const SavedByNode& seen = nodes_.at(node.get());
    for (SavedVariable* saved : seen.tensors) {
      const at::Tensor tensor = tensor_of(saved, node);
      if (!tensor.defined() || !tensor.grad_fn()) continue;
      slots_[{tensor.grad_fn().get(), tensor.output_nr()}].push_back({saved, tensor.detach()});
    }
    const at::Tensor operand = tensor_of(seen.operand, node);
    const Edge& edge = node->next_edge(0);
    if (operand.defined() && edge.is_valid()) {
      slots_[{edge.function.get(), edge.input_nr}].push_back({seen.operand, operand.detach()});
    } else if (operand.defined()) {
      ends_.emplace(node.get(), operand.detach());
    }
    const at::Tensor result = tensor_of(seen.result, node);
    if (result.defined()) slots_[{node.get(), 0}].push_back({seen.result, result.detach()});
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
  std::shared_ptr<Remade> value_of(Output output) {
    const auto known = values_.find(output);
    if (known != values_.end()) return known->second;
    std::shared_ptr<Remade> value = find_value(output);
    values_.emplace(output, value);
    return value;
  }

  std::shared_ptr<Remade> find_value(Output output) {
    const auto leaf = recorded_.leaves.find(output.first);
    if (leaf != recorded_.leaves.end()) {
      return leaf->second.defined() ? std::make_shared<Remade>(leaf->second) : nullptr;
    }
    const auto slots = slots_.find(output);
    const bool is_saved = slots != slots_.end();
    const bool is_fixed = is_saved && fixed_.contains(storage_of(slots->second[0].tensor));
    const auto seen = nodes_.find(output.first);
    if (!is_fixed && output.second == 0 && seen != nodes_.end() && seen->second.remake) {
      const Edge& edge = seen->first->next_edge(0);
      const auto end = ends_.find(output.first);
      std::shared_ptr<Remade> operand = end != ends_.end()
                                            ? std::make_shared<Remade>(end->second)
                                            : value_of({edge.function.get(), edge.input_nr});
      if (operand) return std::make_shared<Remade>(std::move(operand), seen->second.remake);
    }
    return is_saved ? std::make_shared<Remade>(slots->second[0].tensor) : nullptr;
  }

  const Recorded& recorded_;
  std::unordered_map<const Node*, SavedByNode> nodes_;
  std::vector<NodePtr> order_;
  std::map<Output, std::vector<Slot>> slots_;
  std::unordered_map<const Node*, at::Tensor> ends_;  // operands of nodes to which no gradient flows
  std::map<Output, std::shared_ptr<Remade>> values_;
  std::unordered_set<const void*> fixed_;  // storages that are there without the saved tensors
};

void save_smaller(const Recorded& recorded, const SavedTensors& saved, const Keeping& keeping) {
  saved.for_nodes([&](const NodePtr& node, const SavedByNode& seen) {
    if (keeping.small_indices && seen.indices != nullptr) {
      const at::Tensor indices = SavedTensors::tensor_of(seen.indices, node);
      const at::Tensor input = SavedTensors::tensor_of(seen.tensors[0], node);
      if (indices.defined() && input.defined() && indices.nbytes() >= kWorthwhile) {
        save_small_indices(*seen.indices, indices, input.size(-1) * input.size(-2));
      }
    }
    if (keeping.one_bit_mask && recorded.random && seen.factor != nullptr) {
      at::Tensor factors = SavedTensors::tensor_of(seen.factor, node);
      if (factors.defined() && factors.nbytes() >= kWorthwhile) {
        save_one_bit_mask(*seen.factor, std::move(factors));
      }
    }
  });
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

void keep_less(const Recorded& recorded, const Keeping& keeping) {
  if (keeping == Keeping{}) return;
  SavedTensors saved(recorded);
  save_smaller(recorded, saved, keeping);
  if (!keeping.rebuild) return;
  saved.for_remade([](const Slot& slot, const std::shared_ptr<Remade>& value) {
    replace(*slot.saved, value);
  });
}

bool rebuilds_same_bits(const Recorded& recorded) {
  bool same = true;
  SavedTensors saved(recorded);
  try {
    saved.for_remade([&](const Slot& slot, const std::shared_ptr<Remade>& value) {
      same = same && bitwise_equal(seen_as(value->make(), slot.tensor), slot.tensor);
    });
  } catch (const InputError&) {  // a norm whose epsilon is not known
    return false;
  }
  return same;
}

}  // namespace reprise::runtime
