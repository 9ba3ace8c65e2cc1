// This is an operator that the step calls: what is noted before its kernel runs, and the record
// behind it.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

#include "runtime/online/record.h"
#include "runtime/online/remaker.h"
#include "runtime/online/undo.h"
#include "runtime/online/values.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime::internal::online {

struct CallCounts {
  int64_t calls = 0;        // of operators with a kernel of their own
  int64_t kept_values = 0;  // that such calls made, and that cannot be evicted
};

struct ObservedCall final : at::ObserverContext {
  ObservedCall(const OperatorFacts& called, c10::Device of) : facts(called), device(of) {}

  const OperatorFacts& facts;
  const c10::Device device;  // the session's
  bool leaf = false;         // the operator has a kernel of its own
  bool within_leaf = false;  // it is called by such an operator
  bool noted = false;        // note_operands() came to its end
  bool poisoned = false;     // its operands are, because something failed
  bool repeatable = true;    // it computes the same when it runs again
  bool strange = false;      // it takes or gives tensors whose memory cannot be seen
  bool accumulates = false;  // AccumulateGrad runs it: what it gives is or becomes a gradient
  CallPtr record;            // null: nothing is recorded
  c10::SmallVector<ValuePtr, 4> pinned;      // operands
  c10::SmallVector<ValuePtr, 2> exposed;     // absent operands of which only the shape is asked for
  c10::SmallVector<ValuePtr, 2> written;     // that the kernel writes over
  c10::SmallVector<ValuePtr, 2> statistics;  // those of a batch norm among them
  c10::SmallVector<ValuePtr, 4> fresh;       // that it has made, by writes in place, too
  std::unique_ptr<state::RandomState> random;  // before the kernel, if it may draw
};

// Notes the operands, and pins them. Nothing is evicted before all are pinned. `undo` may be null.
void note_operands(ObservedCall& call, const at::RecordFunction& event, Values& values, Undo* undo);

// Unpins the operands, whatever has happened.
void release_operands(ObservedCall& call, Values& values);

// Notes what the kernel has made and written, with how it can be made again.
void note_results(ObservedCall& call, const at::RecordFunction& event, Values& values, Clock& clock,
                  CallCounts& counts);

}  // namespace reprise::runtime::internal::online
