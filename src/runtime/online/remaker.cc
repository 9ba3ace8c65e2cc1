#include "runtime/online/remaker.h"

#include <ATen/record_function.h>

#include <cstring>
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
  explicit DrawScope(const RandomState* state) {
    if (state == nullptr) return;
    before_.emplace(c10::Device(c10::kCPU));
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

c10::Storage copy_of(const c10::Storage& storage) {
  c10::Allocator* const allocator = c10::GetAllocator(c10::kCPU);
  c10::Storage copy(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    allocator->allocate(storage.nbytes()), allocator, /*resizable=*/true);
  if (storage.nbytes() > 0) std::memcpy(copy.mutable_data(), storage.data(), storage.nbytes());
  return copy;
}

}  // namespace

// A call that waits for its operands. Those before `next` are present and pinned.
struct Remaker::Frame {
  CallPtr call;
  size_t next = 0;
};

// The calls that wait, each for the one behind it. It is a list and no recursion, because a step may
// be a chain of many thousand calls.
class Remaker::Frames {
 public:
  explicit Frames(Values& values) : values_(values) {}
  ~Frames() {
    while (!all_.empty()) pop();
  }
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  bool empty() const { return all_.empty(); }
  Frame& top() { return all_.back(); }
  void push(const Value& value) {
    if (!value.maker) throw InternalError("a value is gone that cannot be made again");
    all_.push_back({value.maker});
  }
  // Unpins the operands of the top and takes it away.
  void pop() {
    const Frame frame = std::move(all_.back());
    all_.pop_back();
    for (size_t i = 0; i < frame.next; ++i) {
      const Operand& operand = frame.call->operands[i];
      if (operand.value && !operand.shape_only) values_.unpin(*operand.value);
    }
  }

 private:
  Values& values_;
  std::vector<Frame> all_;
};

void Remaker::make(const ValuePtr& value) {
  if (value->present()) return;
  Frames frames(values_);
  frames.push(*value);
  const Value* expected = nullptr;  // what the call that has just run was to make
  while (!frames.empty()) {
    Frame& frame = frames.top();
    const std::vector<Operand>& operands = frame.call->operands;
    const Value* missing = nullptr;
    for (; frame.next < operands.size(); ++frame.next) {
      const Operand& operand = operands[frame.next];
      if (!operand.value || operand.shape_only) continue;
      if (!operand.value->present()) {
        missing = operand.value.get();
        break;
      }
      values_.pin(*operand.value);
    }
    if (missing != nullptr) {
      if (missing == expected) throw InternalError("a call did not make its result again");
      expected = nullptr;
      frames.push(*missing);
      continue;
    }
    const CallPtr call = frame.call;
    run(call);
    frames.pop();
    // The frame below waits for the first operand that it has not pinned.
    expected = nullptr;
    if (!frames.empty()) {
      const Frame& below = frames.top();
      expected = below.call->operands[below.next].value.get();
    }
  }
  if (!value->present()) throw InternalError("a call did not make its result again");
}

void Remaker::run(const CallPtr& call) {
  const std::vector<c10::Storage> memory = memory_for(*call);
  std::vector<c10::IValue> stack = arguments_of(*call, memory);
  {
    const ReplayScope below_autograd;
    const at::AutoGradMode mode(call->grad_mode);
    const at::RecordFunctionGuard silent(/*is_enabled=*/false);
    const DrawScope draws(call->random.get());
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
std::vector<c10::Storage> Remaker::memory_for(const Call& call) {
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
  if (!apart || !value->can_be_made() || value->pins > 1) return copy_of(storage);
  value->kept = c10::Storage();
  value->resident = false;
  return storage;
}

std::vector<c10::IValue> Remaker::arguments_of(const Call& call,
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

void Remaker::take_results(const Call& call, const std::vector<c10::IValue>& results,
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
