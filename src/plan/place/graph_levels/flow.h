// A GraphFlow makes an exact plan with copies from the runs of a schedule, and from lanes, which
// say which values may move.
//
// A gap lies between two runs that touch the same value while it lives. While no run touches the
// value, it may be elsewhere:
//
//     runs           a       b       c       d       e
//     value v        written                         read         the gap from a to e
//     channel out            [ copy ]
//     device         v v v v v v v v v v             v v          v leaves before d: wait, free
//     channel in                             [ copy ]             it comes back: copy, wait
//
// - A value may leave in a gap if an interval of the schedule (graph/schedule/schedule.h) that the
//   gap lies in has a lane.
// - A value leaves before the first run that does not fit otherwise. If several values may leave,
//   those that lie elsewhere already go first. Among equals, the value whose next read is last goes
//   first. Bytes decide this and times do not, so the plan keeps to its budget for any durations.
// - A value that leaves is copied out behind the run that writes it, as soon as the channel is free
//   for it. If several copies wait, the value that has to leave first is copied first.
// - Values come back in the order of their reads. Each copy back stands as early as the bytes allow,
//   behind the frees of the run before. A value that need not leave at all stays.
// - A value that leaves several times is sent out once. Its copy elsewhere is freed at the last
//   read behind a gap.
//
// The end of the step counts as a run that takes no time and reads the results.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/graph/schedule/schedule.h"
#include "plan/place/lanes.h"
#include "reprise/model/plan.h"

namespace reprise::internal::graph_levels {

inline constexpr int8_t kStays = -1;

// A RunList has the runs of a schedule, as ScheduleLedger::list() gives them.
struct RunList {
  std::vector<int32_t> op_variants, positions;
};

struct FlowCost {
  int64_t time = 0;  // of the compute stream, in nanoseconds
  int64_t peak = 0;  // of the device
  int32_t at = 0;    // the run that has the peak; the number of runs stands for the end
};

class GraphFlow {
 public:
  // Both arguments must outlive the flow.
  GraphFlow(const schedule::ScheduleModel& model, const place::Carrier& carrier);

  // Builds the flow. `lanes` has a lane or kStays for each interval. Where no gap is left that
  // could leave, the peak is above the budget. The cost is O(values of all runs + gaps * log gaps +
  // the runs between copies back and their reads).
  FlowCost build(const RunList& runs, const std::vector<int8_t>& lanes, int64_t budget);
  // Writes the last flow as a plan's actions.
  std::vector<Action> actions() const;
  // Returns whether a value moves in the last flow.
  bool moves() const { return !by_leave_.empty(); }

 private:
  struct Gap {
    ValueIndex value = 0;
    int32_t life = 0;                // position in lives_
    int32_t last = 0, next = 0;      // the runs on both sides
    int32_t leaves = -1, back = -1;  // it is freed, and copied back, before these runs
    int32_t sent = -1;               // the copy out stands before this run; -1: there is none
    bool ends = false;               // it is freed elsewhere before `next`
    int8_t lane = 0;
    int64_t out_end = 0, in_end = 0;
  };
  struct Life {
    int32_t begin = 0, last = 0;
    int32_t leaver = -1;  // the last gap of it that leaves
    bool away = false;    // it lies elsewhere, too
  };

  void measure(const RunList& runs, const std::vector<int8_t>& lanes);
  void touch(ValueIndex value, int32_t run, int32_t position, const std::vector<int8_t>& lanes);
  int8_t lane_of(ValueIndex value, int32_t from, int32_t to, const std::vector<int8_t>& lanes);
  void close(ValueIndex value, bool taken);
  FlowCost evict(int64_t budget);
  bool has_room(const Gap& gap);
  void bring_back(int64_t budget);
  void settle();
  int64_t follow(const RunList& runs);
  void send(size_t gap, int32_t run, int64_t now);
  int64_t level_at(size_t run) const;

  const schedule::ScheduleModel& model_;
  const place::Carrier& carrier_;
  RunList runs_;
  std::vector<int32_t> cursor_;   // by value: the interval before its last touch
  std::vector<int32_t> life_of_;  // by value: position in lives_; -1: it is not live
  std::vector<Life> lives_;
  std::vector<Gap> gaps_;
  std::vector<int32_t> first_gap_, next_gap_;  // lists of gaps by the run behind `last`
  std::vector<int64_t> during_, after_;        // by run; differences while they are summed up
  std::vector<int64_t> absent_, returns_, room_;
  std::vector<std::vector<int64_t>> held_;  // by lane with a capacity, and run
  std::vector<std::pair<int64_t, int32_t>> open_;
  std::vector<int32_t> by_leave_, by_next_;  // positions in gaps_
  std::vector<int32_t> by_write_;            // those that are sent out, by the run that writes
  std::vector<std::pair<int32_t, int32_t>> waiting_;  // to be sent
  std::vector<int64_t> queue_free_;                   // by channel
};

}  // namespace reprise::internal::graph_levels
