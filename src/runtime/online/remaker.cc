#include "runtime/online/remaker.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/step/replay_scope.h"

namespace reprise::runtime::internal::online {

using state::RandomState;
using step::ArgumentKind;
using step::for_each_tensor;
using step::ReplayScope;

namespace {

// Brings back a random state for a scope, if there is one.
class DrawScope {
 public:
  DrawScope(const RandomState* state, c10::Device device) {
    if (state == nullptr) return;
    before_.emplace(device);
    state->restore();
  }
  ~DrawScope() {
    if (before_) before_->restore();
  }
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  std::optional<RandomState> before_;
};

// Pins what a call reads, for a scope.
class PinnedReads {
 public:
  PinnedReads(Values& values, const RecordedCall& call) : values_(values), call_(call) {
    for_each_read(call_, [&](Value& value) { values_.pin(value); });
  }
  ~PinnedReads() {
    for_each_read(call_, [&](Value& value) { values_.unpin(value); });
  }
  PinnedReads(const PinnedReads&) = delete;
  PinnedReads& operator=(const PinnedReads&) = delete;

 private:
  Values& values_;
  const RecordedCall& call_;
};

// While values are made, at most so many operands of waiting calls are evicted. The calls that made
// them run again each time, and they would do so for ever where two operands cannot be there at
// once. Behind the first number, calls make their operands in the order of the step.
constexpr int64_t kMostInOrderOfArguments = 16, kMostTaken = 256;

c10::Storage copy_of(const c10::Storage& storage) {
  View bytes;
  bytes.shape.set_sizes({static_cast<int64_t>(storage.nbytes())});
  bytes.shape.set_strides({1});
  bytes.dtype = at::kByte;
  return tensor_on(storage, bytes).clone().storage();
}

}  // namespace

// A Frame waits for its operands. It is a call that makes a value, or the caller. The caller wants all
// operands. A call wants those before the first one that is missing.
//
// Operands stand in the order of the arguments. Where they do not fit so, they stand in the order of
// the step for the rest of it, and a call wants all that are there. A later operand may be made from
// an earlier one: the sum of a residual block reads its input and what the block makes of it. If the
// later one comes first, the input is made twice, with all blocks before it.
struct Remaker::Frame {
  const Value* makes = nullptr;  // null: these are the values that the caller asks for
  CallPtr call = nullptr;
  std::vector<Value*> operands;
  std::vector<Value*> wanted = {};  // some of the operands

  void put_in_order() {
    std::sort(operands.begin(), operands.end(),
              [](const Value* a, const Value* b) { return a->serial < b->serial; });
  }
  void want(std::vector<Value*> values) {
    for (Value* const value : wanted) --value->wanted;
    wanted = std::move(values);
    for (Value* const value : wanted) ++value->wanted;
  }
};

// Frames are the calls that wait, each for the one behind it. It is a list and no recursion,
// because a step may be a chain of many thousand calls.
class Remaker::Frames {
 public:
  explicit Frames(Remaker& remaker) : remaker_(remaker) {
    remaker_.frames_ = this;
    remaker_.taken_ = 0;
  }
  ~Frames() {
    while (!all_.empty()) pop();
    remaker_.frames_ = nullptr;
  }
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  const std::vector<Frame>& all() const { return all_; }
  Frame& top() { return all_.back(); }
  void push(std::span<const ValuePtr> values) {
    Frame& frame = all_.emplace_back();
    for (const ValuePtr& value : values) frame.operands.push_back(value.get());
    if (remaker_.in_order_) frame.put_in_order();
    frame.want(frame.operands);
  }
  void push(const Value& value) {
    if (!value.maker) throw InternalError("a value is gone that cannot be made again");
    Frame& frame = all_.emplace_back(&value, value.maker);
    for_each_read(*value.maker, [&](Value& operand) { frame.operands.push_back(&operand); });
    if (remaker_.in_order_) frame.put_in_order();
  }
  void pop() {
    all_.back().want({});
    all_.pop_back();
  }
  // From now on operands stand in the order of the step.
  void put_in_order() {
    remaker_.in_order_ = true;
    for (Frame& frame : all_) frame.put_in_order();
  }

 private:
  Remaker& remaker_;
  std::vector<Frame> all_;
};

// Returns the first operand that is missing, or null. It looks at all of them, because some that were
// there may have been evicted.
const Value* Remaker::missing(Frame& frame) const {
  const auto is_missing = [](const Value* value) { return !value->present(); };
  const auto first = std::find_if(frame.operands.begin(), frame.operands.end(), is_missing);
  if (frame.call) {
    std::vector<Value*> there(frame.operands.begin(), in_order_ ? frame.operands.end() : first);
    std::erase_if(there, is_missing);
    frame.want(std::move(there));
  }
  return first == frame.operands.end() ? nullptr : *first;
}

void Remaker::make_all(std::span<const ValuePtr> values) {
  const auto is_there = [](const ValuePtr& value) { return value->present(); };
  if (std::all_of(values.begin(), values.end(), is_there)) return;
  Frames frames(*this);
  frames.push(values);
  while (true) {
    Frame& frame = frames.top();
    if (const Value* const next = missing(frame)) {
      frames.push(*next);
      continue;
    }
    if (!frame.call) return;
    {
      const PinnedReads pinned(values_, *frame.call);
      run(frame.call);
    }
    if (!frame.makes->present()) throw InternalError("a call did not make its result again");
    frames.pop();
  }
}

Value* Remaker::take_from_waiting(int64_t smallest) {
  if (frames_ == nullptr || taken_ == kMostTaken) return nullptr;
  if (taken_ == kMostInOrderOfArguments) frames_->put_in_order();
  const auto may_go = [&](const Value& value) {
    return value.present() && value.pins == 0 && value.can_be_made() && !value.stays &&
           value.bytes >= smallest;
  };
  // A call that stands behind may need the value, too, and sooner.
  for (const bool shared : {false, true}) {
    for (const Frame& frame : frames_->all()) {
      for (Value* const value : frame.wanted) {
        if (!may_go(*value) || (value->wanted > 1 && !shared)) continue;
        ++taken_;
        return value;
      }
    }
  }
  return nullptr;
}

void Remaker::run(const CallPtr& call) {
  std::vector<c10::Storage> memory;
  std::vector<c10::IValue> stack;
  {
    const ReplayScope below_autograd;
    const at::AutoGradMode mode(call->grad_mode);
    const at::RecordFunctionGuard silent(/*is_enabled=*/false);
    memory = memory_for(*call);
    stack = arguments_of(*call, memory);
    const DrawScope draws(call->random.get(), device_);
    call->facts.op.callBoxed(stack);
  }
  ++reruns_;
  measured_ += call->measured;
  clock_.now += call->cost;
  clock_.reruns += call->cost;
  take_results(*call, stack, memory);
  for_each_read(*call, [&](Value& operand) { operand.used = clock_.now; });
}

// Returns the memory of each operand. An operand that the call writes gets memory of its own.
std::vector<c10::Storage> Remaker::memory_for(const RecordedCall& call) {
  std::vector<c10::Storage> memory(call.operands.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    const Operand& operand = call.operands[i];
    if (!operand.value) continue;
    for (size_t j = 0; j < i && !memory[i]; ++j) {
      const Operand& other = call.operands[j];
      const bool same = other.value == operand.value && other.shape_only == operand.shape_only;
      if (same) memory[i] = memory[j];
    }
    if (memory[i]) continue;
    memory[i] =
        operand.shape_only ? values_.stand_in(*operand.value) : values_.storage_of(*operand.value);
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    const Operand& operand = call.operands[i];
    if (!operand.value || !operand.written) continue;
    const c10::Storage before = memory[i];
    const c10::Storage own = own_memory(operand.value, before);
    if (own.is_alias_of(before)) continue;
    for (c10::Storage& storage : memory) {
      if (storage && storage.is_alias_of(before)) storage = own;
    }
  }
  return memory;
}

// Returns memory with the bytes of a value that may be written over: what was made for this call
// alone is taken, all else is copied.
c10::Storage Remaker::own_memory(const ValuePtr& value, c10::Storage storage) {
  const bool apart = value->kept && (!value->current || value->home.expired());
  if (!apart || !value->can_be_made() || value->pins > 1 || value->wanted > 1) {
    return copy_of(storage);
  }
  value->kept = c10::Storage();
  value->resident = false;
  return storage;
}

std::vector<c10::IValue> Remaker::arguments_of(const RecordedCall& call,
                                               const std::vector<c10::Storage>& memory) const {
  std::vector<c10::IValue> stack = call.arguments;
  size_t i = 0;
  const auto next = [&] {
    const Operand& operand = call.operands[i];
    const c10::Storage& storage = memory[i++];
    return operand.value ? tensor_on(storage, operand.view) : at::Tensor();
  };
  for (const Slot& slot : call.slots) {
    switch (slot.kind) {
      case ArgumentKind::kConstant:
        break;
      case ArgumentKind::kTensor:
        stack[slot.argument] = next();
        break;
      case ArgumentKind::kTensorList: {
        c10::List<at::Tensor> list;
        list.reserve(slot.operands);
        for (size_t n = 0; n < slot.operands; ++n) list.push_back(next());
        stack[slot.argument] = std::move(list);
        break;
      }
      case ArgumentKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(slot.operands);
        for (size_t n = 0; n < slot.operands; ++n) {
          at::Tensor tensor = next();
          list.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
        }
        stack[slot.argument] = std::move(list);
        break;
      }
    }
  }
  return stack;
}

void Remaker::take_results(const RecordedCall& call, const std::vector<c10::IValue>& results,
                           const std::vector<c10::Storage>& memory) {
  for (const Made& made : call.made) {
    const ValuePtr value = made.value.lock();
    if (!value || value->present()) continue;
    c10::Storage bytes;
    if (made.previous != nullptr) {
      for (size_t i = 0; i < memory.size(); ++i) {
        if (call.operands[i].value.get() == made.previous) bytes = memory[i];
      }
    } else {
      size_t item = 0;
      for_each_tensor(results.at(made.result), [&](const at::Tensor& tensor) {
        if (item++ == made.item && tensor.defined()) bytes = tensor.storage();
      });
      for (const c10::Storage& operand : memory) {
        if (operand && bytes && operand.is_alias_of(bytes)) {
          throw InternalError(call.facts.name + " returned memory of an operand when it ran again");
        }
      }
    }
    if (!bytes || static_cast<int64_t>(bytes.nbytes()) != value->bytes) {
      throw InternalError(call.facts.name + " returned another size when it ran again");
    }
    scorer_.made_again(*value);
    value->made_again = reruns_;
    values_.place(value, std::move(bytes));
    value->used = clock_.now;
  }
}

}  // namespace reprise::runtime::internal::online
