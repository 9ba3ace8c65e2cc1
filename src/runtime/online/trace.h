// This is the trace of a step in online mode: its calls in order, with what they read, made and
// cost.
//
// Values have the number that they have among the values of the step (Value::serial). A step that
// does the same again gives its values the same numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reprise::runtime::internal::online {

struct TracedValue {
  int64_t bytes = 0;      // of its storage
  int64_t counted = 0;    // as the device of the step counts them; 0: it lies elsewhere
  int32_t maker = -1;     // the call that made it; -1: no call did
  int32_t previous = -1;  // the value whose memory it took over, by a write in place
  // So many calls ran before the value could no longer be made again, and before it was seen to be
  // gone. -1 stands for never.
  int32_t anchored = -1, gone = -1;
  bool outside = false;     // memory from before the step
  bool at_the_end = false;  // it is held when the step ends
};

struct TracedCall {
  // The values that the call reads; those that only calls without a kernel of their own looked at,
  // before it; and those that it made. They lie in Trace::values_of_calls, one list behind the other.
  uint32_t reads = 0, looked_at = 0, made = 0, end = 0;
  uint32_t values = 0;    // how many values there were at its end
  double cost = 0;        // nanoseconds, measured
  int64_t workspace = 0;  // bytes that it had beside operands and results
  bool can_run_again = false, backward = false;
};

struct Trace {
  // prints[c] stands for the calls up to c: their operators, and the shapes and values of operands.
  std::vector<uint64_t> prints;
  std::vector<TracedCall> calls;
  std::vector<TracedValue> values;
  std::vector<int32_t> values_of_calls;
  // A call without a kernel of its own holds its operands until it ends: up to this call.
  struct Hold {
    int32_t call, value;
  };
  std::vector<Hold> holds;
  int64_t live_before = 0;  // bytes that were live before the first call
  int64_t evictions = 0;    // that the step needed
  double rerun_cost = 0;    // nanoseconds that its re-runs took when they ran first

  std::span<const int32_t> reads(size_t call) const {
    return list(calls[call].reads, calls[call].looked_at);
  }
  std::span<const int32_t> looked_at(size_t call) const {
    return list(calls[call].looked_at, calls[call].made);
  }
  std::span<const int32_t> made(size_t call) const {
    return list(calls[call].made, calls[call].end);
  }
  // Returns the first calls of this trace, with what was known of their values then.
  Trace first(size_t count) const;

 private:
  std::span<const int32_t> list(uint32_t begin, uint32_t end) const {
    return std::span(values_of_calls).subspan(begin, end - begin);
  }
};

}  // namespace reprise::runtime::internal::online
