#include "runtime/online/observed_call.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <utility>

#include "runtime/device/plain_tensors.h"
#include "runtime/online/costs.h"
#include "runtime/step/operators.h"

namespace reprise::runtime::internal::online {

using state::RandomState;
using step::ArgumentKind;
using step::for_each_tensor;

namespace {

// Autograd adds up the gradients of a tensor that is used several times in place. To make such a sum
// again would be to run the backward pass again, so a sum that has so many parts stays.
constexpr int32_t kSumThatStays = 3;

ArgumentKind kind_of(const c10::IValue& value) {
  if (value.isTensor()) return ArgumentKind::kTensor;
  if (value.isTensorList()) return ArgumentKind::kTensorList;
  return value.isOptionalTensorList() ? ArgumentKind::kOptionalTensorList : ArgumentKind::kConstant;
}

// A number, a text or a list of them can be given to an operator again.
bool is_repeatable(const c10::IValue& constant) {
  if (constant.isGenerator()) return !constant.toGenerator().defined();
  return !constant.isStorage() && !constant.isObject() && !constant.isPyObject() &&
         !constant.isCapsule() && !constant.isFuture() && !constant.isGenericDict();
}

// Says whether the memory of the tensor can be seen. The memory of an undefined one can.
bool is_seen(const at::Tensor& tensor, c10::Device device) {
  return !tensor.defined() ||
         (device::is_plain(tensor) && (tensor.is_cpu() || tensor.device() == device));
}

template <class List>
void add_once(List& list, const ValuePtr& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// Returns whether autograd runs the operator to put a gradient into .grad, or to add to it.
bool runs_accumulate_grad() {
  if (!step::in_backward()) return false;
  const auto node = torch::autograd::get_current_node();
  return node && dynamic_cast<const torch::autograd::AccumulateGrad*>(&*node) != nullptr;
}

// A tensor whose memory cannot be seen may look at that of the operands.
void hold_operands(const ObservedCall& call, Values& values) {
  for (const ValuePtr& value : call.pinned) values.hold(*value);
}

// Notes the operands of one call.
class Reader {
 public:
  Reader(ObservedCall& call, c10::ArrayRef<c10::IValue> arguments, Values& values, Undo* undo)
      : call_(call), arguments_(arguments), values_(values), undo_(undo) {}

  void read() {
    const auto constants = [&](size_t a) -> const c10::IValue* {
      return a < arguments_.size() && arguments_[a].isBool()       ? &arguments_[a]
             : a < arguments_.size() && arguments_[a].isBoolList() ? &arguments_[a]
                                                                   : nullptr;
    };
    if (call_.facts.depends_on_constants) {
      step::is_batch_norm(call_.facts.op, constants, &statistics_);
    }
    for (size_t a = 0; a < arguments_.size(); ++a) {
      ArgumentFacts facts = call_.facts.arguments.at(a);
      if (call_.facts.depends_on_constants) {
        facts.shape_only =
            call_.device.is_cpu() && step::reads_shape_only(call_.facts.op, constants, a);
        facts.written = facts.written && (!is_undeclared(a) ||
                                          step::is_known_to_write(call_.facts.op, constants, a));
      }
      read_argument(a, facts);
    }
  }

 private:
  bool is_undeclared(size_t a) const {
    const auto* alias = call_.facts.op.schema().arguments()[a].alias_info();
    return alias == nullptr || !alias->isWrite();
  }

  void read_argument(size_t a, const ArgumentFacts& facts) {
    const c10::IValue& value = arguments_[a];
    const ArgumentKind kind = kind_of(value);
    const bool statistic =
        std::find(statistics_.begin(), statistics_.end(), a) != statistics_.end();
    if (kind == ArgumentKind::kConstant) {
      call_.repeatable = call_.repeatable && is_repeatable(value);
      if (call_.record) call_.record->arguments.push_back(value);
      return;
    }
    size_t count = 0;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      ++count;
      Operand operand = operand_of(tensor, facts);
      if (statistic && operand.value) add_once(call_.statistics, operand.value);
      // A batch norm that runs again leaves its statistics alone.
      if (call_.record && !statistic) call_.record->operands.push_back(std::move(operand));
    });
    if (!call_.record) return;
    call_.record->arguments.emplace_back();
    if (!statistic) call_.record->slots.push_back({a, kind, count});
  }

  Operand operand_of(const at::Tensor& tensor, const ArgumentFacts& facts) {
    Operand operand;
    if (!tensor.defined()) return operand;
    if (!is_seen(tensor, call_.device)) {
      call_.strange = true;
      return operand;
    }
    operand.value = values_.of(tensor.storage());
    Value& value = *operand.value;
    operand.written = facts.written && call_.leaf;
    operand.shape_only = facts.shape_only && !operand.written;
    if (call_.record) operand.view = view_of(tensor);
    if (value.outside && undo_ != nullptr) undo_->note_read(tensor);
    if (operand.shape_only && !value.present()) {
      values_.expose(value);
      call_.exposed.push_back(operand.value);
      return operand;
    }
    values_.pin(value);
    call_.pinned.push_back(operand.value);
    if (operand.shape_only) return operand;
    if (value.shared) call_.repeatable = false;  // Its bytes may change without a sign.
    if (operand.written) {
      if (value.outside && undo_ != nullptr) undo_->note_write(tensor);
      add_once(call_.written, operand.value);
    } else if (value.blank_call && call_.leaf && !call_.facts.view) {
      values_.anchor(value);  // Code that calls no operator has written it.
    }
    return operand;
  }

  ObservedCall& call_;
  c10::ArrayRef<c10::IValue> arguments_;
  Values& values_;
  Undo* undo_;
  std::vector<size_t> statistics_;
};

// Notes the results of one call.
class Writer {
 public:
  Writer(ObservedCall& call, const at::RecordFunction& event, Values& values, Clock& clock,
         CallCounts& counts)
      : call_(call), outputs_(event.outputs()), values_(values), clock_(clock), counts_(counts) {}

  void write() {
    // An operator that threw has no results.
    const bool threw = outputs_.size() < call_.facts.results;
    for (const c10::IValue& output : outputs_) {
      for_each_tensor(output, [&](const at::Tensor& t) { call_.strange |= !is_seen(t, call_.device); });
    }
    if (call_.strange) hold_operands(call_, values_);
    if (threw || call_.strange || call_.poisoned) call_.repeatable = false;
    look_at_random_state();
    const bool all_makeable = std::all_of(
        call_.written.begin(), call_.written.end(),
        [&](const ValuePtr& value) { return is_statistic(value) || can_be_written_again(*value); });
    call_.repeatable = call_.repeatable && all_makeable;
    for (const ValuePtr& old : call_.written) write_over(old);
    if (!threw) {
      const size_t first = outputs_.size() - call_.facts.results;
      for (size_t r = 0; r < call_.facts.results; ++r) read_result(r, outputs_[first + r]);
    }
    finish_record();
  }

 private:
  void look_at_random_state() {
    if (!call_.random) return;
    if (call_.random->is_now()) return;
    if (call_.record) call_.record->random = std::move(call_.random);
  }

  bool is_statistic(const ValuePtr& value) const {
    return std::find(call_.statistics.begin(), call_.statistics.end(), value) !=
           call_.statistics.end();
  }

  // Says whether the bytes before the write can be made again, and have the size of those behind it.
  static bool can_be_written_again(const Value& old) {
    const auto home = old.home.lock();
    return (old.can_be_made() || old.blank_call) && !old.stays && home &&
           static_cast<int64_t>(home->nbytes()) == old.bytes;
  }

  void write_over(const ValuePtr& old) {
    if (old->home.expired()) return;
    const bool makeable = call_.repeatable && !is_statistic(old);
    if (makeable && !old->can_be_made()) old->maker = old->blank_call;
    const ValuePtr next = values_.renew(old);
    call_.fresh.push_back(next);
    if (makeable) {
      call_.record->made.push_back({.value = next, .previous = old.get()});
      next->maker = call_.record;
    }
    if (next->writes >= kSumThatStays && step::in_backward()) values_.hold(*next);
  }

  void read_result(size_t result, const c10::IValue& value) {
    size_t item = 0;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const size_t position = item++;
      if (!tensor.defined() || !is_seen(tensor, call_.device)) return;
      const ValuePtr known = values_.find(tensor.storage().unsafeGetStorageImpl());
      if (!known) return add_result(tensor, result, position);
      if (known->bytes != static_cast<int64_t>(tensor.storage().nbytes())) {
        values_.of(tensor.storage());
      }
      if (call_.accumulates) values_.hold(*values_.of(tensor.storage()));
    });
  }

  void add_result(const at::Tensor& tensor, size_t result, size_t item) {
    const c10::Storage& storage = tensor.storage();
    if (storage.nbytes() == 0) return;
    const ValuePtr value = values_.add(storage);
    call_.fresh.push_back(value);
    if (call_.repeatable && is_of_allocator(storage) && !call_.accumulates) {
      call_.record->made.push_back({.value = value, .result = result, .item = item});
      (call_.facts.gives_blank_memory ? value->blank_call : value->maker) = call_.record;
    }
    if (call_.accumulates) values_.hold(*value);
  }

  // Other memory is not counted, and to evict it would give nothing back. A front before the
  // allocator of a device hands on blocks with a deleter that is not the front's.
  bool is_of_allocator(const c10::Storage& storage) const {
    if (storage.device() != call_.device) return false;
    const c10::Allocator* const own = c10::GetAllocator(call_.device.type());
    return call_.device.is_cpu() ? storage.data_ptr().get_deleter() == own->raw_deleter()
                                 : storage.allocator() == own;
  }

  void finish_record() {
    ++counts_.calls;
    const CallPtr& record = call_.record;
    record->cost = modelled_cost(*record);
    clock_.now += record->cost;
    clock_.first_runs += record->cost;
    for (const ValuePtr& value : call_.fresh) {
      value->used = clock_.now;
      if (!value->can_be_made() && !value->blank_call && !value->outside) ++counts_.kept_values;
      values_.pin(*value);  // and unpin: it tells from now on when somebody takes its pointer
      values_.unpin(*value);
    }
    for (const ValuePtr& value : call_.pinned) value->used = clock_.now;
    if (record->made.empty()) return;
    for (const Operand& operand : record->operands) {
      if (!operand.value) continue;
      // A value that cannot be made again has to stay as long as this call may run again.
      if (!operand.shape_only && !operand.written) values_.keep_for_calls(*operand.value);
      add_reader(*operand.value, record);
    }
  }

  ObservedCall& call_;
  const std::vector<c10::IValue>& outputs_;
  Values& values_;
  Clock& clock_;
  CallCounts& counts_;
};

}  // namespace

void note_operands(ObservedCall& call, const at::RecordFunction& event, Values& values,
                   Undo* undo) {
  const auto all = event.inputs();
  const auto arguments = all.slice(all.size() - event.num_inputs());
  if (call.leaf && !call.facts.view) {
    call.record = std::make_shared<RecordedCall>(call.facts);
    call.record->grad_mode = at::GradMode::is_enabled();
    call.record->arguments.reserve(arguments.size());
    call.record->operands.reserve(arguments.size());
  }
  call.repeatable = call.facts.repeatable;
  call.accumulates = call.leaf && runs_accumulate_grad();
  Reader(call, arguments, values, undo).read();
  if (call.record && call.facts.draws) {
    call.random = std::make_unique<RandomState>(call.device);
  }
  call.noted = true;
}

void release_operands(ObservedCall& call, Values& values) {
  for (const ValuePtr& value : call.pinned) {
    if (call.poisoned) values.cure(*value);
    values.unpin(*value);
  }
  for (const ValuePtr& value : call.exposed) values.hide(*value);
}

void note_results(ObservedCall& call, const at::RecordFunction& event, Values& values, Clock& clock,
                  CallCounts& counts) {
  if (call.record) {
    Writer(call, event, values, clock, counts).write();
    return;
  }
  if (!call.leaf) return;
  if (call.strange) hold_operands(call, values);
  // A view. AccumulateGrad detaches a gradient that it takes over.
  for (const c10::IValue& output : event.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !is_seen(tensor, call.device)) return;
      if (call.accumulates) values.hold(*values.of(tensor.storage()));
    });
  }
}

}  // namespace reprise::runtime::internal::online
