#include "runtime/chain/saved/keep_less.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/chain/saved/remade.h"
#include "runtime/chain/saved/smaller.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using device::NodePtr;
using state::bitwise_equal;

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

constexpr size_t kWorthwhile = 1024;  // bytes; for fewer, the hooks cost more than they save

// An Output is an output of a node. A Slot is a tensor that a node saved, with its output.
using Output = std::pair<const Node*, uint32_t>;
struct Slot {
  SavedVariable* saved;
  at::Tensor tensor;
  Output output;
  bool is_copy;  // made by the operation itself, with a version of its own
};

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Everything that nodes of known kinds have saved, node by node, as of the end of each operation. A
// tensor is one output of one node only as long as nobody writes to it. A write with history makes
// another node, and a write without history makes another version.
class SavedTensors {
 public:
  // `rebuild`: whether to look for ways to make tensors again.
  SavedTensors(const Leaves& leaves, bool rebuild) : leaves_(leaves), rebuild_(rebuild) {
    for (const auto& [node, leaf] : leaves) fixed_.insert(storage_of(leaf.tensor));
  }

  // Returns whether the tensor, which is about to be read, has changed since its node made it or
  // since the stage got it.
  bool was_written(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.grad_fn()) return false;
    const Node* node = tensor.grad_fn().get();
    if (const auto leaf = leaves_.find(node); leaf != leaves_.end()) return !leaf->second.holds();
    return was_written({node, tensor.output_nr()}, tensor);
  }

  // Adds the node of `made`, a result of the operation. Returns null if the node is not of a known
  // kind, or was added before.
  const SavedByNode* add(const at::Tensor& made, const std::optional<NormCall>& call,
                         bool operand_was_written) {
    const NodePtr node = made.grad_fn();
    if (leaves_.contains(node.get()) || nodes_.contains(node.get())) return nullptr;
    if (made.layout() != at::kStrided || made.is_nested()) return nullptr;
    SavedByNode seen = look_at(*node, call);
    if (!seen.is_known) return nullptr;
    // If the operand was written, a copy of it is not what the node before has made either.
    if (operand_was_written) {
      seen.remake = nullptr;
      seen.operand = nullptr;
    }
    held_.push_back(node);
    if (made.output_nr() == 0)
      made_.emplace(node.get(), Made{version_of(made), StorageLayout(made)});
    const SavedByNode& known = nodes_.emplace(node.get(), std::move(seen)).first->second;
    if (rebuild_) add_slots(*node, known);
    return &known;
  }

  // Calls visit(slot, value) for each new slot whose tensor `value` can make again. If visit()
  // returns true, the slot no longer keeps its tensor.
  template <class Visit>
  void for_remade(Visit&& visit) {
    for (const Slot& slot : slots_) {
      if (slot.tensor.nbytes() < kWorthwhile || fixed_.contains(storage_of(slot.tensor))) continue;
      const Output base = behind_views(slot.output);
      if (!slot.is_copy && was_written(base, slot.tensor)) continue;
      const std::shared_ptr<Remade> value = value_of(base);
      if (value && !value->is_kept() && visit(slot, value)) kept_.erase(slot.output);
    }
    slots_.clear();
  }

  // Marks the outputs of the stage as kept, because they are there anyway.
  void set_outputs(const Tensors& outputs) {
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.grad_fn()) continue;
      const auto value = values_.find({output.grad_fn().get(), output.output_nr()});
      const bool is_known = value != values_.end() && value->second && !was_written(output);
      if (is_known) value->second->keep(output);
    }
  }

 private:
  struct Made {
    int64_t version;
    StorageLayout geometry;
  };

  bool was_written(const Output& output, const at::Tensor& tensor) const {
    const auto made = made_.find(output.first);
    return made != made_.end() && made->second.version != version_of(tensor);
  }

  void add_slot(SavedVariable* saved, const at::Tensor& tensor, const Output& output,
                bool is_copy = false) {
    slots_.push_back({saved, tensor.detach(), output, is_copy});
    if (is_copy || !was_written(output, tensor)) kept_.try_emplace(output, slots_.back().tensor);
  }

  void add_slots(Node& node, const SavedByNode& seen) {
    for (SavedVariable* saved : seen.tensors) {
      const at::Tensor tensor = saved_tensor(saved, node);
      if (!tensor.defined() || !tensor.grad_fn()) continue;
      add_slot(saved, tensor, {tensor.grad_fn().get(), tensor.output_nr()});
    }
    if (const at::Tensor operand = saved_tensor(seen.operand, node); operand.defined()) {
      const Edge& edge = node.next_edge(0);
      if (edge.is_valid()) {
        const Output output{edge.function.get(), edge.input_nr};
        add_slot(seen.operand, operand, output, /*is_copy=*/!operand.grad_fn());
      } else {
        ends_.emplace(&node, operand);
      }
    }
    if (const at::Tensor result = saved_tensor(seen.result, node); result.defined()) {
      add_slot(seen.result, result, {&node, 0});
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

  // Returns the value of an output, or null if it is neither kept nor made from kept tensors.
  std::shared_ptr<Remade> value_of(const Output& output) {
    const auto known = values_.find(output);
    if (known != values_.end()) return known->second;
    std::shared_ptr<Remade> value = find_value(output);
    values_.emplace(output, value);
    return value;
  }

  std::shared_ptr<Remade> find_value(const Output& output) {
    if (const auto leaf = leaves_.find(output.first); leaf != leaves_.end()) {
      return std::make_shared<Remade>(leaf->second);
    }
    const auto seen = nodes_.find(output.first);
    const auto made = made_.find(output.first);
    if (output.second == 0 && seen != nodes_.end() && seen->second.remake && made != made_.end()) {
      const Edge& edge = seen->first->next_edge(0);
      const auto end = ends_.find(output.first);
      std::shared_ptr<Remade> operand = end != ends_.end()
                                            ? std::make_shared<Remade>(end->second)
                                            : value_of({edge.function.get(), edge.input_nr});
      if (operand) {
        return std::make_shared<Remade>(std::move(operand), seen->second.remake,
                                        made->second.geometry);
      }
    }
    const auto kept = kept_.find(output);
    return kept != kept_.end() ? std::make_shared<Remade>(kept->second) : nullptr;
  }

  const Leaves leaves_;
  const bool rebuild_;
  std::unordered_map<const Node*, SavedByNode> nodes_;
  std::unordered_map<const Node*, Made> made_;       // outputs 0 of the nodes
  std::vector<NodePtr> held_;                        // keeps the addresses of the nodes in use
  std::vector<Slot> slots_;                          // the new ones
  std::map<Output, Unchanged> kept_;                 // tensors of slots that stay
  std::unordered_map<const Node*, Unchanged> ends_;  // operands of nodes to which no gradient flows
  std::map<Output, std::shared_ptr<Remade>> values_;
  std::unordered_set<const void*> fixed_;  // storages of leaves
};

bool wants(const AlternativeOptions& options, const char* name) {
  const auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return (options.only.empty() || has(options.only)) && !has(options.without);
}

}  // namespace

std::vector<NamedSavedForm> saved_forms(const AlternativeOptions& allowed) {
  validate_for_chain(allowed);
  SavedForm smaller{.one_bit_mask = wants(allowed, "one-bit-mask"),
                    .small_indices = wants(allowed, "small-indices")};
  SavedForm rebuild = smaller;
  rebuild.rebuild = true;
  std::vector<NamedSavedForm> all = {{"keep", {}}};
  if (smaller != SavedForm{}) all.push_back({"smaller", smaller});
  if (wants(allowed, "rebuild")) all.push_back({"rebuild", rebuild});
  return all;
}

// Watches the beginning and the end of every operation.
struct Watch {
  SavedTensors saved;
  SavedForm saved_form;
  bool* same_bits;                     // not null: compare only, replace nothing
  std::vector<NodePtr> dropouts = {};  // those whose factors somebody else still held
  int within_dropout = 0;
  std::exception_ptr failed = nullptr;  // callbacks lose exceptions
  std::optional<at::CallbackHandle> handle = {};

  void see(const at::Tensor& made, const std::optional<NormCall>& call, bool operand_was_written) {
    const SavedByNode* seen = saved.add(made, call, operand_was_written);
    if (seen == nullptr) return;
    Node& node = *made.grad_fn();
    if (saved_form.small_indices && seen->indices != nullptr) {
      const at::Tensor indices = saved_tensor(seen->indices, node);
      if (indices.defined() && indices.nbytes() >= kWorthwhile) {
        save_small_indices(*seen->indices, indices, seen->plane);
      }
    }
    if (saved_form.one_bit_mask && within_dropout > 0 && seen->factor != nullptr) {
      dropouts.push_back(made.grad_fn());
    }
    if (saved_form.rebuild) {
      saved.for_remade([&](const Slot& slot, const std::shared_ptr<Remade>& value) {
        if (same_bits != nullptr) return compare(slot, *value);
        replace(*slot.saved, value);
        return true;
      });
    }
  }

  // Returns whether the tensor tells its node. Autograd refuses that for some views that were
  // written to.
  static bool history_of(const at::Tensor& tensor) {
    try {
      if (tensor.defined()) tensor.grad_fn();
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }

  bool compare(const Slot& slot, const Remade& value) const {
    try {
      const StorageLayout geometry(slot.tensor);
      for (const bool over : {false, true}) {
        *same_bits = *same_bits && bitwise_equal(geometry.of(value.make(over)), slot.tensor);
      }
    } catch (const InternalError&) {  // the tensor would have another layout in memory
      *same_bits = false;
    }
    return false;
  }

  void save_factors() {
    std::erase_if(dropouts, [](const NodePtr& node) {
      SavedVariable* factor = look_at(*node, {}).factor;
      at::Tensor factors = saved_tensor(factor, *node);
      return !factors.defined() || factors.nbytes() < kWorthwhile ||
             save_one_bit_mask(*factor, std::move(factors));
    });
  }
};

namespace {

// The callbacks of RecordFunction are plain functions, so their state is global to the thread.
thread_local Watch* watching = nullptr;
thread_local bool listening = false;

struct Begun final : at::ObserverContext {
  std::optional<NormCall> norm;
  bool operand_was_written = false;
  bool is_dropout = false;
};

template <class Work>
void guarded(Work&& work) {
  if (watching == nullptr || watching->failed) return;
  try {
    work(*watching);
  } catch (...) {
    watching->failed = std::current_exception();
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event) {
  auto begun = std::make_unique<Begun>();
  guarded([&](Watch& watch) {
    const std::string_view name = event.name();
    begun->is_dropout = name == "aten::dropout" || name == "aten::dropout_" ||
                        name == "aten::feature_dropout" || name == "aten::feature_dropout_";
    watch.within_dropout += begun->is_dropout;
    begun->norm = norm_call(event);
    const auto inputs = event.inputs();
    if (!at::GradMode::is_enabled() || inputs.empty() || !inputs[0].isTensor()) return;
    begun->operand_was_written =
        !watch.history_of(inputs[0].toTensor()) || watch.saved.was_written(inputs[0].toTensor());
  });
  return begun;
}

void on_end(const at::RecordFunction& event, at::ObserverContext* context) {
  const auto& begun = *static_cast<const Begun*>(context);
  guarded([&](Watch& watch) {
    for (const c10::IValue& value : event.outputs()) {
      if (!at::GradMode::is_enabled() || !value.isTensor()) continue;
      const at::Tensor made = value.toTensor();
      if (made.defined() && watch.history_of(made) && made.grad_fn()) {
        watch.see(made, begun.norm, begun.operand_was_written);
      }
    }
    if (begun.is_dropout) watch.save_factors();
    watch.within_dropout -= begun.is_dropout;
  });
}

}  // namespace

KeepLess::KeepLess(const Leaves& leaves, const SavedForm& saved_form, bool* same_bits)
    : outer_(watching) {
  if (same_bits != nullptr) *same_bits = true;
  if (saved_form != SavedForm{}) {
    watch_ = std::make_unique<Watch>(
        Watch{SavedTensors(leaves, saved_form.rebuild), saved_form, same_bits});
    if (!std::exchange(listening, true)) {
      watch_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                                      .needsInputs(true)
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

void KeepLess::finish(const Tensors& outputs) {
  if (!watch_) return;
  watch_->save_factors();
  rethrow();
  watch_->saved.set_outputs(outputs);
}

void KeepLess::rethrow() const {
  if (watch_ && watch_->failed) std::rethrow_exception(watch_->failed);
}

}  // namespace reprise::runtime::internal::chain
