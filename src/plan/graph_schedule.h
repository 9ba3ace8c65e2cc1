// Schedules of a graph as what is kept between the ops of plain training, and what they cost.
//
// The ops run in the order of plain training, but for forward ops that are put off until something
// reads what they write. Between two ops that touch a value (its "gap") the value is kept or not.
// What an op reads and is not there is made right before it, with all that this needs in turn.
// Every value is then freed as with_frees() does: the cost is exact.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::internal {

enum class Keeping : char {
  kKeep,      // live throughout the gap
  kOnReplay,  // dropped; once it was made again for something else, kept to the end of the gap
  kDrop,      // dropped; what is made again in the gap stays for one op of plain training only
};

struct Gap {
  ValueIndex value;
  // Positions of ops that can touch the value. The last gap of a value ends behind all: there
  // it is live only as long as something that is made again reads it.
  int32_t begin, end;
  bool fixed;  // cannot be dropped: nothing makes the value a second time
};

inline constexpr int32_t kPutOff = -1;
inline constexpr int32_t kFastest = -1;  // the fastest of those that make most of what is wanted

// The value of a gap is made before the op at a position in it, whether that needs it or not: as
// long as what it is made from is there, or before something else is made.
struct Early {
  int32_t position, gap;

  auto operator<=>(const Early&) const = default;
};

struct Schedule {
  std::vector<Keeping> gaps;         // by gap
  std::vector<int32_t> variant;      // by op; kPutOff: when it is needed
  std::vector<int32_t> on_demand;    // by op: the variant when it is needed; kFastest
  std::vector<int32_t> realization;  // by choice
  std::vector<Early> early;          // ascending

  bool operator==(const Schedule&) const = default;
};

// The life of one copy of a value: from the run that writes it to the last that touches it.
struct Life {
  ValueIndex value;
  int32_t first, last;  // runs
};

class ScheduleWalk {
 public:
  // O(size of the graph). Throws InputError if the graph has no plain training.
  explicit ScheduleWalk(const Graph& graph);

  // The runs of plain training; of an op that it leaves out some variant that can be the first run.
  // A position is an op's place here, which is that in the graph.
  const std::vector<Run>& plain() const { return plain_; }
  const std::vector<Gap>& gaps() const { return gaps_; }
  Schedule keep_all() const;
  // Whether the op at this position may be put off.
  bool can_wait(int32_t position) const;
  // Of this value at this position, before the op of plain training runs there; -1: there is none.
  int32_t gap_at(ValueIndex value, int32_t position) const;
  // The time of the fastest op that makes it again, without those that make what that reads.
  int64_t replay_time(ValueIndex value) const { return replay_time_[static_cast<size_t>(value)]; }

  // False if the schedule cannot run, or takes longer than `most`; then nothing below is of use.
  // O(runs * values per run).
  bool walk(const Schedule& schedule, int64_t most = INT64_MAX);

  int64_t time() const { return time_; }
  int64_t peak() const { return peak_; }
  int32_t peak_run() const { return peak_run_; }  // the first that reaches it
  const std::vector<Run>& runs() const { return runs_; }
  const std::vector<int32_t>& positions() const { return positions_; }  // by run
  const std::vector<Life>& lives() const { return lives_; }

 private:
  // A variant, with its lists side by side in lists_.
  struct Way {
    Run run;
    int64_t time, workspace;
    int32_t reads, writes, taken, end;  // where each list begins
    bool first, again;  // may run when it is needed: as the first run, as a later one
  };
  struct Touch {
    ValueIndex value;
    int32_t gap;  // that begins here
  };
  struct Frame {
    int32_t way, next;
  };

  void add_ways();
  void add_gaps();
  void reset();
  bool active(OpIndex op) const;
  bool make(int32_t way, bool needed);
  bool make_early(size_t* next);
  bool make_rest();
  bool wanted_later(ValueIndex value) const;
  int32_t choose_way(ValueIndex value, const Way& reader) const;
  bool emit(const Way& way);
  void end_life(ValueIndex value);
  void finish_position(int32_t position);
  void measure();

  const Graph& graph_;
  std::vector<Run> plain_;
  std::vector<int32_t> choice_, realization_;  // by op; -1: in no choice
  std::vector<int32_t> first_way_;             // by op
  std::vector<Way> ways_;
  std::vector<ValueIndex> lists_;
  std::vector<Gap> gaps_;
  std::vector<int32_t> first_gap_;            // by value, and one more
  std::vector<std::vector<Touch>> touches_;   // by position
  std::vector<std::vector<int32_t>> makers_;  // by value: ways that make it when it is needed
  std::vector<int64_t> replay_time_;          // by value
  std::vector<int64_t> bytes_;                // by value
  std::vector<char> is_input_, is_result_;    // by value
  Way results_way_;                           // reads the results, at the end
  int64_t always_ = 0;                        // fixed and inputs

  const Schedule* schedule_ = nullptr;  // while walk() runs
  int64_t most_ = 0, time_ = 0, peak_ = 0;
  int32_t peak_run_ = 0, position_ = 0;
  std::vector<char> ran_;                    // by op
  std::vector<char> live_, open_;            // by value: for the walk, and in memory
  std::vector<int32_t> gap_, birth_, last_;  // by value
  std::vector<ValueIndex> made_;             // at this position, because they were needed
  std::vector<Frame> stack_;
  std::vector<Run> runs_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> change_;  // of the level, by run
  std::vector<int64_t> workspace_;
  std::vector<Life> lives_;
};

}  // namespace reprise::internal
