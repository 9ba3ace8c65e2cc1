// Records the trace of a step in online mode.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/online/observed_call.h"
#include "runtime/online/trace.h"
#include "runtime/online/values.h"

namespace reprise::runtime::internal::online {

class Tracer {
 public:
  // Goes on where the first calls of a trace end. Tensors of fewer bytes than `smallest` are never
  // evicted.
  Tracer(Values& values, Trace first, int64_t smallest, c10::Device device);

  // A call has noted its operands.
  void begin(const ObservedCall& call);
  // What happens between these two calls is the call's own work.
  void kernel_begins(const ObservedCall& call);
  void kernel_ended(const ObservedCall& call);
  // The results are noted; the print is that of the calls so far.
  void end(const ObservedCall& call, uint64_t print);
  // Memory is made free for a request, between these two calls.
  void make_room_begins();
  void make_room_ended();

  // The step is over. Returns the trace without what all calls together cost.
  Trace finish();

 private:
  using Clock = std::chrono::steady_clock;

  TracedValue& entry(const Value& value);
  int64_t live_bytes() const;
  int64_t counted(const Value& value) const;
  void watch_anchored();
  void look_who_is_gone();
  int64_t bytes_made(const ObservedCall& call) const;

  Values& values_;
  const int64_t smallest_;
  const c10::Device device_;
  Trace trace_;
  std::vector<int32_t> looked_at_;       // since the last call
  std::vector<Values::Anchored> watch_;  // that are not evicted

  // The call that runs.
  Clock::time_point began_, room_began_;
  int64_t live_before_ = 0, room_live_ = 0;
  int64_t most_ = 0;     // bytes that were live at once, with those that had been evicted for them
  int64_t evicted_ = 0;  // bytes, since it began
  double cost_ = 0;
  int64_t used_ = 0;       // bytes above live_before_
  bool measured_ = false;  // by kernel_begins() and kernel_ended()
};

}  // namespace reprise::runtime::internal::online
