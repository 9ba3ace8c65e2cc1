// A schedule of a graph with its runs and its exact cost, kept up to date under small changes.
//
// What runs at one position of plain training depends on which values are live there, and on the
// schedule. For each position the ledger knows what it asked and what it changed. A change of the
// schedule touches some positions; these are walked again, in order, and where what one leaves
// behind differs from before, so are the later positions that asked for it. Levels of memory are
// sums over the lives of values in a PeakTree.
//
// Cost of a change: the runs at the positions walked again, times values per run and the logarithm
// of the number of positions; a few positions as a rule, all of them at worst.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/graph/schedule/schedule.h"
#include "plan/graph/schedule/peak_tree.h"

namespace reprise::internal::schedule {

class ScheduleLedger {
 public:
  // The model must outlive it. No schedule yet: assign() comes first.
  explicit ScheduleLedger(const ScheduleModel& model);

  // Forgets all before. False if the schedule cannot run; then nothing but assign() is of use.
  bool assign(const Schedule& schedule);

  const Schedule& schedule() const { return schedule_; }
  int64_t time() const { return time_; }
  int64_t peak() const { return std::max(model_.always(), tree_.largest()); }
  // The first that reaches the peak; the number of ops for the end.
  int32_t peak_position() const { return static_cast<int32_t>(tree_.where()); }
  // What the levels of all positions are above a limit, added up. O(log ops) for each that is.
  double excess(int64_t limit) const { return tree_.excess(limit); }
  // The largest level while the runs of each position run, and at the end. O(positions).
  std::vector<int64_t> levels() const;
  int64_t run_count() const { return run_count_; }
  std::vector<Run> runs() const;
  // Whether the memory of the value is held throughout what runs at a position, which does not
  // touch it.
  bool passes(ValueIndex value, int32_t position) const;
  // Whether what runs at a position touches the value.
  bool touches(ValueIndex value, int32_t position) const;

  // Changes, which take effect with apply_changes().
  void set_interval(int32_t interval, Keeping keeping);
  void set_variant(int32_t position, int32_t variant);
  void set_on_demand(int32_t position, int32_t variant);
  void set_realization(int32_t choice, int32_t realization);
  void set_early(std::vector<Early> early);
  bool changed() const { return !changes_.empty(); }

  // False if the schedule cannot run, or takes longer than `most`: then undo() must follow.
  bool apply_changes(int64_t most = INT64_MAX);
  // Takes all changes since the last commit() or assign() back.
  void undo();
  void commit();

 private:
  // What a position has to do with a value (or whether an op has run before).
  enum : uint8_t {
    kAsked = 1,       // what runs depends on it
    kSet = 2,         // it is set there,
    kLive = 4,        // to live
    kTouched = 8,     // some run touches its memory,
    kReadsFirst = 16  // and the first that does finds it there
  };
  struct Mark {
    int32_t position;
    uint8_t flags;
  };
  struct Position {
    std::vector<int32_t> op_variants, ids;  // what runs; what has a mark here
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

  // One position (graph/schedule/replay.cc): fills op_variants_now_ and ids_now_ with their flags.
  bool walk_position(int32_t position);
  bool make(int32_t op_variant, bool needed);
  bool make_early();
  bool make_rest();
  int32_t choose_op_variant(ValueIndex value, const ScheduleModel::OpVariant& reader, OpIndex before);
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

  // What follows from it.
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
  const int32_t first_ran_;  // ids of values come first, then those of ops
  Schedule schedule_;
  std::vector<Position> positions_;       // and one for the end
  std::vector<std::vector<Mark>> marks_;  // by id, positions ascending
  std::vector<int64_t> local_;            // by position: peak above the level it starts from
  PeakTree tree_;
  int64_t time_ = 0, run_count_ = 0;

  // Positions to walk again, and to measure again.
  std::vector<int32_t> wanted_, wanted_local_;
  std::vector<char> is_wanted_, is_wanted_local_;

  // To take changes back.
  bool logging_ = false;
  std::vector<Change> changes_;
  std::vector<std::vector<Early>> early_before_;
  std::vector<MarkBefore> marks_before_;
  std::vector<Position> positions_before_;
  std::vector<int32_t> positions_changed_;  // beside positions_before_
  std::vector<Raise> raises_;               // of ranges of the tree
  size_t raised_ = 0;                       // so many of them are in the tree
  std::vector<LocalBefore> local_before_;

  // While one position is walked.
  int32_t position_ = 0;
  std::vector<uint8_t> flags_;  // by id
  std::vector<char> live_now_;  // by id
  std::vector<int32_t> op_variants_now_, ids_now_;
  std::vector<ValueIndex> made_;
  std::vector<Frame> stack_;
  // While one position is measured.
  std::vector<int32_t> last_;  // by value: the run; -1: not there
  std::vector<int64_t> level_change_;
};

}  // namespace reprise::internal::schedule
