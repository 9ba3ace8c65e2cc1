// Makes values again: runs the calls that made them, on the operands that they had.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/online/heuristics.h"
#include "runtime/online/record.h"
#include "runtime/online/values.h"

namespace reprise::runtime::internal::online {

// A Clock is a clock that modelled costs drive.
struct Clock {
  double now = 0;
  double first_runs = 0, reruns = 0;  // sums of costs
};

class Remaker {
 public:
  Remaker(Values& values, Scorer& scorer, Clock& clock, c10::Device device)
      : values_(values), scorer_(scorer), clock_(clock), device_(device) {}

  // Makes the value present, and first all that its call reads, in the order of the arguments.
  // Calls run below autograd, with the random state that they had, and write nothing but memory of
  // their own. Values that are made on the way may be evicted again as soon as no running call
  // needs them. Exceptions of a kernel pass through, for instance BudgetError; the values are in
  // order then.
  void make(const ValuePtr& value) { make_all({&value, 1}); }
  // Makes all of these values present at once. While one is made, those that are there are evicted
  // only if nothing else is left to evict, and then they are made again.
  void make_all(std::span<const ValuePtr> values);

  // Returns the value to evict when nothing is left that no call waits with. It is that of the call
  // that has to wait the longest. Null: there is none, or values have been evicted so for too often.
  Value* take_from_waiting(int64_t smallest);

  int64_t reruns() const { return reruns_; }
  // Returns the time of these calls when they ran first, in nanoseconds, as far as it was measured.
  double measured() const { return measured_; }

 private:
  struct Frame;
  class Frames;

  const Value* missing(Frame& frame) const;
  void run(const CallPtr& call);
  std::vector<c10::Storage> memory_for(const RecordedCall& call);
  c10::Storage own_memory(const ValuePtr& value, c10::Storage storage);
  std::vector<c10::IValue> arguments_of(const RecordedCall& call,
                                        const std::vector<c10::Storage>& memory) const;
  void take_results(const RecordedCall& call, const std::vector<c10::IValue>& results,
                    const std::vector<c10::Storage>& memory);

  Values& values_;
  Scorer& scorer_;
  Clock& clock_;
  const c10::Device device_;
  int64_t reruns_ = 0;
  double measured_ = 0;
  Frames* frames_ = nullptr;  // while values are made
  int64_t taken_ = 0;         // from waiting calls, while values are made
  bool in_order_ = false;     // Operands are made in the order of the step.
};

}  // namespace reprise::runtime::internal::online
