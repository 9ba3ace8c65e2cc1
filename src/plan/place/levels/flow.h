// A Flow turns runs, and a wish which values may move away, into an exact plan.
//
// A value that may move is copied out as soon as it is written. It leaves the device (wait, free)
// only where the next run does not fit otherwise, in the order in which values were written. The
// order of the actions decides this alone, and no time does. A value that never has to leave is not
// copied at all. Values come back in the order in which they are needed, each as early as the bytes
// allow, behind the frees of the run before.
//
// Only the gap of a value around the loss moves: from its last use before the loss to its first use
// after it. Values that are made again in the backward stay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/place/lanes.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::internal::levels {

inline constexpr int8_t kStays = -1;

// A Schedule says what runs and, by value, on which lane it may move, or that it stays.
struct Schedule {
  std::vector<Run> runs;
  std::vector<int8_t> lane_of;
};

// A Carried is a value that leaves the device and comes back. Positions are those of runs: things
// happen before the run, and behind the frees of the run before it.
struct Carried {
  ValueIndex value = 0;
  int8_t lane = 0;
  int32_t written = 0;  // the run that writes it; the copy out stands behind it
  int32_t last = 0;     // the last run before the loss that touches it
  int32_t next = 0;     // the first run behind the loss that reads it
  int32_t leaves = -1;  // it is freed on the device before this run
  int32_t back = -1;    // the copy back stands before this run
  int64_t out_end = 0, in_end = 0;
};

struct FlowResult {
  bool fits = false;
  int64_t time = 0;  // of the compute stream, in nanoseconds
  int64_t need = 0;  // if it does not fit: the least budget for which it does
  OpIndex at = 0;    // the op that needs it
};

// A FlowBuilder keeps its tables between calls, because a search asks for thousands of flows. The
// graph must be a lowered chain: one op is the loss, and no variant reuses memory.
class FlowBuilder {
 public:
  // All arguments must outlive the builder.
  FlowBuilder(const Graph& graph, const place::Carrier& carrier, OpIndex loss);

  // Builds the flow within `budget` bytes, and returns its time. O(runs * values per run + the runs
  // between the copies back and their uses).
  FlowResult build(const Schedule& schedule, int64_t budget);
  // Returns the values that move, in the order in which they were written, of the last flow that
  // fit.
  const std::vector<Carried>& carried() const { return carried_; }
  // Writes the last flow as a plan's actions. `runs` are those that were built.
  std::vector<Action> actions(const std::vector<Run>& runs) const;

 private:
  void measure(const Schedule& schedule);
  void touch(const std::vector<Run>& runs, int32_t r, bool before_loss);
  void close(ValueIndex value);
  void keep_to_capacity();
  bool evict(const std::vector<Run>& runs, int64_t budget, FlowResult& result);
  void bring_back(int64_t budget);
  // Returns the bytes while a run goes on and just before it, if no value is away.
  int64_t level_at(size_t run) const {
    return run == 0 ? during_[0] : std::max(during_[run], after_[run - 1]);
  }
  int64_t time_of(const std::vector<Run>& runs);

  struct Life {
    int32_t begin = -1;  // -1: not live
    int32_t last = -1;   // the last run that touches it
    bool taken = false;  // by that run
  };

  const Graph& graph_;
  const place::Carrier& carrier_;
  OpIndex loss_;
  std::vector<int64_t> bytes_;     // by value
  std::vector<char> is_result_;    // by value
  std::vector<char> is_input_;     // by value
  int64_t resident_ = 0;           // fixed bytes and inputs
  std::vector<Life> lives_;        // by value
  std::vector<int32_t> next_use_;  // by value: the first use behind the loss; -2: not asked for
  std::vector<int64_t> during_, after_;  // by run; differences while they are summed up
  std::vector<int64_t> absent_;          // by run: bytes of values that are away
  std::vector<int64_t> room_;            // by run
  std::vector<int64_t> returns_;         // by run: bytes of values whose next use it is
  std::vector<Carried> carried_;
  std::vector<size_t> by_leave_, by_next_;  // positions in carried_
  std::vector<int64_t> queue_free_;         // by channel
};

}  // namespace reprise::internal::levels
