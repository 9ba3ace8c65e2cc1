#include "runtime/chain/needed_calls.h"

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/lockstep/shells.h"
#include "runtime/step/operators.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::chain {
namespace {

// Calls visit(tensor) for the defined tensors among the last `count` values of the stack.
template <class Visit>
void for_each_of_last(const torch::jit::Stack& stack, size_t count, Visit&& visit) {
  for (size_t k = stack.size() - count; k < stack.size(); ++k) {
    step::for_each_tensor(stack[k], [&](const at::Tensor& tensor) {
      if (tensor.defined()) visit(tensor);
    });
  }
}

// Returns whether a tensor that looks the same can be made without an operator.
bool is_ordinary(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.device() == device && tensor.storage_offset() == 0 && !tensor.is_nested() &&
         !tensor.is_quantized() && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

bool contains(const std::vector<const c10::StorageImpl*>& list, const c10::StorageImpl* storage) {
  return std::find(list.begin(), list.end(), storage) != list.end();
}

}  // namespace

void CallNoter::take(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  NotedCall call{op};
  Facts facts;
  for_each_of_last(stack, schema.arguments().size(), [&](const at::Tensor& tensor) {
    call.operands.push_back(tensor.sizes().vec());
    if (!tensor.has_storage()) return;
    know(tensor.storage());
    facts.read.push_back(tensor.storage().unsafeGetStorageImpl());
  });
  lockstep::call_plainly(op, stack);
  const size_t results = schema.returns().size();
  size_t views = 0;
  bool plain = !schema.is_mutable() && !op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t k = stack.size() - results; k < stack.size(); ++k) {
    host_reads_ = host_reads_ || !(stack[k].isTensor() || stack[k].isTensorList());
    plain = plain && stack[k].isTensor() && is_ordinary(stack[k].toTensor(), device_);
  }
  for_each_of_last(stack, results, [&](const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const bool view = contains(facts.read, storage);
    views += view ? 1 : 0;
    plain = plain && !view && !contains(facts.made, storage);
    know(tensor.storage());
    facts.made.push_back(storage);
    call.results.push_back(step::geometry_of(tensor));
    call.result_bytes.push_back(tensor.storage().nbytes());
  });
  facts.may_be_left_out = plain && results > 0;
  const bool is_view = !schema.is_mutable() && results > 0 && views == facts.made.size();
  facts.reads_bytes = !is_view && !step::gives_unwritten_memory(op);
  calls_.push_back(std::move(call));
  facts_.push_back(std::move(facts));
}

NotedCalls CallNoter::finish() {
  std::unordered_set<const c10::StorageImpl*> needed;
  for (const Weak& storage : known_) {
    if (!storage.expired()) needed.insert(storage._unsafe_get_target());
  }
  bool some_left_out = false;
  for (size_t c = calls_.size(); c-- > 0;) {
    const Facts& facts = facts_[c];
    NotedCall& call = calls_[c];
    call.needed = !facts.may_be_left_out ||
                  std::any_of(facts.made.begin(), facts.made.end(),
                              [&](const c10::StorageImpl* made) { return needed.contains(made); });
    if (!call.needed) {
      some_left_out = true;
      continue;
    }
    // A view needs no bytes; whoever reads it needs the bytes of its memory.
    if (facts.reads_bytes) needed.insert(facts.read.begin(), facts.read.end());
    call.operands.clear();
    call.results.clear();
    call.result_bytes.clear();
  }
  if (host_reads_ || !some_left_out) return {};
  return std::move(calls_);
}

bool CallSkipper::is_same(const NotedCall& call, const torch::jit::Stack& stack) const {
  if (call.needed) return true;
  size_t next = 0;
  bool same = true;
  for_each_of_last(stack, call.op.schema().arguments().size(), [&](const at::Tensor& tensor) {
    same = same && next < call.operands.size() && tensor.sizes() == call.operands[next];
    ++next;
  });
  return same && next == call.operands.size();
}

void CallSkipper::take(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  failed_ = true;  // unless the end is reached
  differs_ = differs_ || next_ == calls_.size() || !(calls_[next_].op == op) ||
             !is_same(calls_[next_], stack);
  if (differs_) throw InputError("a stage runs other operations than when it was measured");
  const NotedCall& call = calls_[next_++];
  if (call.needed) {
    lockstep::call_plainly(op, stack);
    failed_ = false;
    return;
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  for (size_t r = 0; r < call.results.size(); ++r) {
    c10::Storage storage = lockstep::shell(static_cast<int64_t>(call.result_bytes[r]), device_);
    shells_.push_back(storage.getWeakStorageImpl());
    stack.emplace_back(step::tensor_on(std::move(storage), call.results[r]));
  }
  failed_ = false;
}

bool CallSkipper::is_as_noted() const {
  return !differs_ && next_ == calls_.size() &&
         std::all_of(shells_.begin(), shells_.end(),
                     [](const auto& shell) { return shell.expired(); });
}

}  // namespace reprise::runtime::internal::chain
