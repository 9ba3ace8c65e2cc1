// This is a schedule of a graph with its runs and its exact cost, kept up to date under small
// changes.
//
// The ops that run at one position of plain training depend on the schedule, and on the values live
// there. For each position the ledger knows what it asked and what it changed. A change of the
// schedule touches some positions, and these are walked again in order. If a position then leaves
// something else behind than before, the later positions that asked for it are walked again, too:
//
//     position          3        4        5        6        7
//     mark of value v   sets v            asks v            asks v
//     a change at 3     v is no longer live after 3, so 5 is walked again.
//                       5 makes v again and keeps it, so 7 is not walked.
//
// Levels of memory are sums over the lifetimes of values in a PeakTree.
//
// A change costs the runs at the positions that are walked again, times values per run and the
// logarithm of the number of positions. These are a few positions as a rule, and all of them at
// worst.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/graph/schedule/peak_tree.h"
#include "plan/graph/schedule/schedule.h"

namespace reprise::internal::schedule {

class ScheduleLedger {
 public:
  // The model must outlive the ledger. There is no schedule yet: assign() comes first.
  explicit ScheduleLedger(const ScheduleModel& model);

  // Takes a schedule and forgets the schedule before. Returns false if the schedule cannot run.
  // After that, only assign() may follow.
  bool assign(const Schedule& schedule);

  const Schedule& schedule() const { return schedule_; }
  int64_t time() const { return time_; }
  int64_t peak() const { return std::max(model_.always(), tree_.largest()); }
  // Returns the first position that reaches the peak. The number of ops stands for the end.
  int32_t peak_position() const { return static_cast<int32_t>(tree_.where()); }
  // The bytes above a limit, added up over all positions. O(log ops) for each position above it.
  double excess(int64_t limit) const { return tree_.excess(limit); }
  // By position: the largest level while its runs run. The last level is that of the end.
  // O(positions).
  std::vector<int64_t> levels() const;
  int64_t run_count() const { return run_count_; }
  std::vector<Run> runs() const;
  // Lists the op variants that run, in order, with the position of each. Replaces what the lists
  // held.
  void list(std::vector<int32_t>& op_variants, std::vector<int32_t>& positions) const;
  // Returns whether the value is held while the runs of a position run, and none of them touches
  // it.
  bool passes(ValueIndex value, int32_t position) const;
  // Returns whether what runs at a position touches the value.
  bool touches(ValueIndex value, int32_t position) const;

  // These changes take effect with apply_changes().
  void set_interval(int32_t interval, Keeping keeping);
  void set_variant(int32_t position, int32_t variant);
  void set_on_demand(int32_t position, int32_t variant);
  void set_realization(int32_t choice, int32_t realization);
  void set_early(std::vector<Early> early);
  bool changed() const { return !changes_.empty(); }

  // Returns false if the schedule cannot run, or takes longer than `most`. After that, undo() must
  // follow.
  bool apply_changes(int64_t most = INT64_MAX);
  // Takes back all changes since the last commit() or assign().
  void undo();
  void commit();

 private:
  // A level that no position with runs has.
  static constexpr int64_t kNothingRuns = INT64_MIN / 4;

  // The relation of a position to a value, or to the question whether an op has run.
  enum : uint8_t {
    kAsked = 1,       // The ops that run here depend on whether the value is live.
    kSet = 2,         // The position says whether the value is live after it,
    kLive = 4,        // and it is live.
    kTouched = 8,     // Some run touches the memory of the value,
    kReadsFirst = 16  // and the first such run reads it.
  };
  struct Mark {
    int32_t position;
    uint8_t flags;
  };
  struct Position {
    std::vector<int32_t> op_variants, ids;  // the runs, and the ids that have a mark here
  };
  struct Frame {
    int32_t op_variant, next;
  };
  enum class Part : uint8_t { kInterval, kVariant, kOnDemand, kRealization, kEarly };
  struct Change {
    Part part;
    int32_t at, before;
  };
  struct MarkBefore {
    int32_t id, position;
    uint8_t flags;
  };
  struct Raise {
    int32_t first, last;
    int64_t amount;
  };
  struct LocalBefore {
    int32_t position;
    int64_t peak;
  };

  int32_t end() const { return static_cast<int32_t>(model_.plain().size()); }
  int32_t ran_id(OpIndex op) const { return first_ran_ + op; }
  void clear();

  // walk.cc: one position. Fills op_variants_now_, and ids_now_ with their flags.
  bool walk_position(int32_t position);
  bool make(int32_t op_variant, bool needed);
  bool make_early();
  bool make_rest();
  int32_t choose_op_variant(ValueIndex value, const ScheduleModel::OpVariant& reader,
                            OpIndex before);
  bool wanted_later(ValueIndex value);
  int32_t fastest_first_op_variant(OpIndex op) const;
  int32_t before_random(OpIndex op);
  int32_t before_taken(const ScheduleModel::OpVariant& taker);
  bool emit(int32_t op_variant);
  void finish();
  uint8_t& flags(int32_t id);
  bool live(ValueIndex value);
  bool has_run(OpIndex op);
  void set_live(int32_t id, bool live);
  bool live_before(int32_t id, int32_t position) const;

  // ledger.cc and marks.cc: what follows from a position that was walked.
  void want(int32_t position);
  void want_random_after(OpIndex op);
  void want_around(ValueIndex value, int32_t begin, int32_t end);
  int32_t last_that_asks(int32_t interval) const;
  void adopt(int32_t position);
  void set_mark(int32_t id, int32_t position, uint8_t flags);
  void put_mark(int32_t id, int32_t position, uint8_t flags);
  void spread(int32_t id, int32_t position, uint8_t before, uint8_t after);
  void relink(ValueIndex value, int32_t position, size_t at, uint8_t before, uint8_t after);
  bool goes_on(ValueIndex value, int32_t position) const;
  void want_local(int32_t position);
  int64_t local_peak(int32_t position);
  void count(const std::vector<int32_t>& op_variants, int sign);

  const ScheduleModel& model_;
  const int32_t first_ran_;  // The ids of values come first, then those of ops.
  Schedule schedule_;
  std::vector<Position> positions_;       // by position; the last one is the end
  std::vector<std::vector<Mark>> marks_;  // by id, with ascending positions
  std::vector<int64_t> local_;            // by position: peak above the level it starts from
  PeakTree tree_;
  int64_t time_ = 0, run_count_ = 0;

  // The positions that must be walked again, and those that must be measured again.
  std::vector<int32_t> wanted_, wanted_local_;
  std::vector<char> is_wanted_, is_wanted_local_;

  // undo() needs these members.
  bool logging_ = false;
  std::vector<Change> changes_;
  std::vector<std::vector<Early>> early_before_;
  std::vector<MarkBefore> marks_before_;
  std::vector<Position> positions_before_;
  std::vector<int32_t> positions_changed_;  // which positions positions_before_ holds
  std::vector<Raise> raises_;               // changes of ranges of the tree
  size_t raised_ = 0;                       // how many of them are in the tree
  std::vector<LocalBefore> local_before_;

  // The state while one position is walked.
  int32_t position_ = 0;
  std::vector<uint8_t> flags_;  // by id
  std::vector<char> live_now_;  // by id
  std::vector<int32_t> op_variants_now_, ids_now_;
  std::vector<ValueIndex> made_;
  std::vector<Frame> stack_;
  // The state while one position is measured.
  std::vector<int32_t> last_;  // by value: the last run that touches it; -1: it is not live
  std::vector<int64_t> level_change_;
};

}  // namespace reprise::internal::schedule
