// A Flow makes an exact plan with copies from the runs of a schedule, and from lanes, which
// say which values may move.
//
// A gap lies between two runs that touch the same value while it lives. While no run touches the
// value, it may lie in another memory:
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
//   those that lie in another memory already go first, then those whose next read is last, then
//   those that were written first. Bytes decide this and times do not, so the plan keeps to its
//   budget for any durations.
// - A value that leaves is copied out behind the run that writes it, as soon as the channel is free
//   for it. If several copies wait, the value that has to leave first is copied first.
// - Values come back in the order of their reads. Each copy back stands as early as the bytes
//   allow, behind the frees of the run before. A value that need not leave at all stays.
// - A value that leaves several times is sent out once. Its copy in the other memory is freed at
//   the last read behind a gap.
//
// - A value that lives in another memory between the steps (homes.h), and moves, is away before the first
//   run that reads it and behind the last one. It comes from its home, and where no run has written it
//   there is nothing to send back. Between two reads it may leave, as other values do. A result that lives
//   there is sent behind the run that writes it. Either these values come in time for their first read, if
//   channels were half as fast, and leave when their copy should be over; or they come as early, and leave
//   as late, as the bytes allow. A value that stays is there at every run.
//
// The end of the step counts as a run that takes no time and reads the results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "plan/graph/schedule/schedule.h"
#include "plan/place/lanes.h"
#include "plan/place/room.h"
#include "reprise/model/plan.h"

namespace reprise::internal::place {

// A RunList has the runs of a schedule, as ScheduleLedger::list() gives them: the op variants, and
// the positions in plain training that they stand at. Positions ascend.
struct RunList {
  std::vector<int32_t> op_variants, positions;

  bool operator==(const RunList&) const = default;
};

struct FlowCost {
  int64_t time = 0;  // of the compute stream, in nanoseconds
  int64_t peak = 0;  // of the device
  int32_t at = 0;    // the run that has the peak; the number of runs stands for the end
};

class Flow {
 public:
  // Both arguments must outlive the flow.
  Flow(const schedule::ScheduleModel& model, const LaneTimes& lane_times);

  // Builds the flow. `lanes` has a lane or kStays for each interval. With homes it goes on: for each group,
  // where any lane says that the group moves, and for all groups, where kStays says that what moves comes
  // as early, and leaves as late, as the bytes allow. Where no gap is left that
  // could leave, the peak is above the budget. A flow that takes longer than `limit` is not built
  // to its end, nor is one above the budget without `with_misfits`. The time of the first is above
  // the limit, the peak of the second is above the budget, and nothing else holds of them. The cost
  // is O(values of all runs + gaps * log gaps + the runs between copies back and their reads).
  FlowCost build(const RunList& runs, const std::vector<int8_t>& lanes, int64_t budget,
                 int64_t limit = std::numeric_limits<int64_t>::max(), bool with_misfits = true);
  // Writes the last flow as a plan's actions.
  std::vector<Action> actions() const;
  // Returns whether a value moves in the last flow.
  bool moves() const { return !by_leave_.empty(); }

 private:
  // Says why the value is away: a lane lets it move, or it is at home, before its first read (kComes),
  // between two (kBetween), behind the last one (kGoes), or since it was sent there (kSent).
  enum class Why : int8_t { kLane, kComes, kBetween, kGoes, kSent };
  struct Gap {
    Why why = Why::kLane;
    ValueIndex value = 0;
    int32_t life = 0;                              // position in lives_
    int32_t last = 0, next = 0;                    // the runs on both sides
    int32_t first_interval = 0, end_interval = 0;  // those that it lies in
    int32_t leaves = -1, back = -1;  // it is freed, and copied back, before these runs
    int32_t sent = -1;               // the copy out stands before this run; -1: there is none
    bool ends = false;               // its copy in the other memory is freed before `next`
    int8_t lane = 0;
    int32_t earliest = 0;  // it is not copied back before this run
    int64_t out_end = 0, in_end = 0;
  };
  // A Queue hands out gaps in the order of a rank. A gap that comes behind all others costs O(1).
  class Queue {
   public:
    void clear() { entries_.clear(), head_ = 0; }
    bool empty() const { return head_ == std::ssize(entries_); }
    int64_t rank() const { return entries_[head_].first; }
    int32_t front() const { return entries_[head_].second; }
    void pop() { ++head_; }
    void push(int64_t rank, int32_t gap) {
      const std::pair<int64_t, int32_t> entry{rank, gap};
      if (empty() || entries_.back() < entry) return entries_.push_back(entry);
      entries_.insert(std::upper_bound(entries_.begin() + head_, entries_.end(), entry), entry);
    }

   private:
    std::vector<std::pair<int64_t, int32_t>> entries_;
    std::ptrdiff_t head_ = 0;
  };
  struct Life {
    int32_t begin = 0, last = 0;
    int32_t leaver = -1;   // the last gap of it that leaves
    bool is_sent = false;  // another memory has it, too
    bool at_home = false;  // a memory behind the device has it from the beginning
  };

  void measure();
  void touch(ValueIndex value, int32_t run, int32_t position);
  void touch_homed(ValueIndex value, int32_t run);
  void end_homed(ValueIndex value);
  void add_gap(ValueIndex value, int32_t next, int32_t to);
  void add_home_gap(ValueIndex value, int32_t next, Why why);
  int32_t slot_to_leave(const Gap& gap, int32_t slot);
  int64_t bytes(ValueIndex value) const {
    return homes_.has(value) ? homes_.bytes(value).count() : model_.bytes(value);
  }
  void choose_lanes(const std::vector<int8_t>& lanes);
  void close(ValueIndex value, bool taken);
  FlowCost evict(int64_t budget);
  bool has_room(const Gap& gap);
  void bring_back(int64_t budget);
  void find_arrivals();
  void settle();
  int64_t follow(int64_t slack);
  void send_next(int32_t run, int64_t clock);

  const schedule::ScheduleModel& model_;
  const LaneTimes& lane_times_;
  const HomeGroups& homes_;
  RunList runs_;
  int64_t time_ = 0;              // of the runs alone
  bool in_time_ = false;          // values with a home elsewhere come and leave in time
  std::vector<int32_t> cursor_;   // by value: the interval before its last touch
  std::vector<int32_t> life_of_;  // by value: position in lives_; -1: it is not live
  std::vector<Life> lives_;
  std::vector<Gap> gaps_;
  std::vector<int32_t> first_gap_, next_gap_;      // lists of gaps by the run behind `last`
  std::vector<int64_t> times_, starts_;            // by run
  std::vector<int64_t> level_, after_;             // by run; differences while they are summed up
  std::vector<int64_t> absent_, returns_;          // by run
  std::vector<std::vector<int32_t>> due_;          // by run: gaps that leave before it, or sooner
  Room room_;                                      // on the device, by run
  std::vector<Room> lane_room_;                    // by lane with a capacity, and run
  std::vector<std::pair<int64_t, int32_t>> open_;  // a heap of gaps that may leave
  std::vector<int32_t> by_leave_, by_next_;        // positions in gaps_
  std::vector<int32_t> by_write_;    // those that are sent out, by the run that writes
  Queue waiting_;                    // to be sent
  std::vector<int64_t> queue_free_;  // by channel
};

}  // namespace reprise::internal::place
