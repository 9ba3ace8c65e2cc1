// This is the memory of online mode about a step: values, and the calls that made them.
//
// A value is one version of a storage's bytes; a write in place makes the next version. A call
// holds its operands, and a value holds the call that made it. So a value that lives keeps the
// records of all that it was made from, and no bytes of theirs. A record that nobody holds is
// forgotten at once.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/SizesAndStrides.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/online/operator_facts.h"
#include "runtime/state/random_state.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::online {

struct RecordedCall;
struct EvictedSet;
using CallPtr = std::shared_ptr<RecordedCall>;

struct Value {
  explicit Value(const c10::Storage& storage);
  ~Value();
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;

  // Says whether the bytes are there. A storage that nobody holds has lost them.
  bool present() const { return resident && (kept || !home.expired()); }
  // Says whether the bytes can be made again.
  bool can_be_made() const { return maker != nullptr; }

  c10::weak_intrusive_ptr<c10::StorageImpl> home;  // the storage that it is or was a version of
  c10::StorageImpl* address;                       // of the home; the weak reference keeps it
  const int64_t bytes;
  const c10::Device device;
  uint64_t serial = 0;  // counts the values of a step
  CallPtr maker;        // null: it cannot be made again
  CallPtr blank_call;   // it is memory that nobody has written yet; this call gave it
  bool current = true;  // it is the newest version of its home
  bool resident = true;
  bool outside = false;  // it was there before the step, or it was made by no operator
  bool stays = false;    // it is never evicted: a gradient, or memory that is known elsewhere
  bool shared = false;   // code outside of operators has a pointer to it, and may write
  bool listed = false;   // among those that were made again without a home
  bool armed = false;    // its home tells when such code takes a pointer
  // A value without a maker keeps its home here, as long as a call may need it. A value that was made
  // again and has no home any more keeps its bytes.
  c10::Storage kept;
  int32_t pins = 0;        // by operators that run, and by calls that run again
  int32_t wanted = 0;      // by calls that wait for more operands; it is evicted after all else
  int64_t made_again = 0;  // counts over all values of the step; 0: never
  int32_t writes = 0;      // versions of the storage before this one
  double used = 0;         // time of the last use, on the clock of modelled costs
  std::vector<std::weak_ptr<RecordedCall>> readers;
  size_t sweep_readers_at = 32;         // number of readers at which expired ones are dropped
  std::shared_ptr<EvictedSet> evicted;  // its component of evicted values (h_DTR_eq)
  uint64_t mark = 0;                    // of the last walk that met it
};
using ValuePtr = std::shared_ptr<Value>;

// A View is the way in which an operand looks at its storage. Up to five dimensions lie inside.
struct View {
  c10::impl::SizesAndStrides shape;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool wrapped_number = false, conjugate = false, negative = false;
};

View view_of(const at::Tensor& tensor);
at::Tensor tensor_on(c10::Storage storage, const View& view);

struct Operand {
  ValuePtr value;  // null: an undefined tensor
  View view;
  bool shape_only = false;  // the operator asks for the shape and never reads the bytes
  bool written = false;
};

// A tensor argument of a call: so many operands, at this position of its arguments.
struct Slot {
  size_t argument = 0;
  step::ArgumentKind kind = step::ArgumentKind::kTensor;
  size_t operands = 0;
};

// A Made is a value that a call makes: the item-th tensor of a result, or the next version of an
// operand.
struct Made {
  std::weak_ptr<Value> value;
  size_t result = 0, item = 0;
  const Value* previous = nullptr;  // the operand that it is the next version of
};

// A RecordedCall is one call of an operator that has a kernel of its own.
struct RecordedCall {
  explicit RecordedCall(const OperatorFacts& called) : facts(called) {}

  const OperatorFacts& facts;
  std::vector<c10::IValue> arguments;  // None where operands stand
  std::vector<Operand> operands;
  c10::SmallVector<Slot, 6> slots;
  c10::SmallVector<Made, 2> made;
  std::unique_ptr<state::RandomState> random;  // before the call, if it drew
  bool grad_mode = false;
  double cost = 0;      // modelled nanoseconds
  double measured = 0;  // nanoseconds, if steps are planned
  uint64_t mark = 0;    // of the last walk that met it
};

// Calls `visit(Value&)` for the operands whose bytes the call reads. One that stands twice is
// visited twice.
template <class Visit>
void for_each_read(const RecordedCall& call, Visit&& visit) {
  for (const Operand& operand : call.operands) {
    if (operand.value && !operand.shape_only) visit(*operand.value);
  }
}

// Calls `visit(const CallPtr&, const ValuePtr&)` for the values that one call made from this one.
template <class Visit>
void for_each_made_from(const Value& value, Visit&& visit) {
  for (const std::weak_ptr<RecordedCall>& reader : value.readers) {
    const CallPtr call = reader.lock();
    if (!call) continue;
    for (const Made& made : call->made) {
      if (const ValuePtr other = made.value.lock()) visit(call, other);
    }
  }
}

void add_reader(Value& value, const CallPtr& call);

}  // namespace reprise::runtime::internal::online
