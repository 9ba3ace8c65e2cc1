// This file has the schedules of a graph. A schedule says what is kept between the ops of plain
// training.
//
//     plain training     a       b       c       d       e         positions
//     writes, reads      v               v               v         a writes v; c and e read v
//     intervals of v     |-- interval 0 -|-- interval 1 -|- 2 ->
//
//     interval 1 kept      a b c d e          v is held from a to e
//     interval 1 dropped   a b c d a' e       v is freed after c; the re-run a' makes it again
//
// The rules that turn a schedule into runs:
// - The ops run in the order of plain training. A forward op may be put off until some op reads
//   what it writes.
// - If an op reads a value that is not live, the value is made right before the op, with everything
//   that this needs in turn.
// - Before a re-run takes the memory of a value, the ops run that make something else from this
//   value, if what they make is kept from then on.
// - Ops that draw random numbers run in the order of plain training, also if they were put off. So
//   each of them draws the numbers of plain training.
// - Every value is freed as with_frees() frees it. So the cost that graph/schedule/ledger.h keeps
//   is exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::internal::schedule {

enum class Keeping : char {
  kKeep,     // The value is live throughout the interval.
  kOnRerun,  // It is dropped. Once it was made again, it is kept to the end of the interval.
  kDrop,     // It is dropped. Each time it is made again, it stays for one op of plain training.
};

struct Interval {
  ValueIndex value;
  // Begin and end are the positions of two ops that can touch the value. The last interval of a
  // value ends behind all positions. In the last interval, the value is live only as long as some
  // re-run reads it.
  int32_t begin, end;
  bool must_keep;  // The value cannot be dropped, because nothing makes it a second time.
};

inline constexpr int32_t kPutOff = -1;
inline constexpr int32_t kFastest = -1;  // the fastest variant that makes most of what is wanted

// The value of an interval is made before the op at a position in it, whether the op needs it or
// not. So it can be made while the values that it is made from are still live.
struct Early {
  int32_t position, interval;

  auto operator<=>(const Early&) const = default;
};

struct Schedule {
  std::vector<Keeping> intervals;    // by interval
  std::vector<int32_t> variant;      // by op: the variant of its turn; kPutOff: it waits
  std::vector<int32_t> on_demand;    // by op: the variant when a value is needed, or kFastest
  std::vector<int32_t> realization;  // by choice
  std::vector<Early> early;          // ascending

  bool operator==(const Schedule&) const = default;
};

// All schedules of a graph share this model. The graph must outlive the model.
class ScheduleModel {
 public:
  // A variant of an op, with its lists side by side.
  struct OpVariant {
    Run run;
    int64_t time, workspace;
    int32_t reads, writes, taken, end;  // where each list begins
    bool first, again;  // whether it may run on demand, as the first run and as a re-run
  };
  struct Touch {
    ValueIndex value;
    int32_t interval;  // the one that begins here
  };
  using List = std::span<const ValueIndex>;

  // O(size of the graph). With `in_turn`, no op may be put off. Throws InputError if the graph has no
  // plain training.
  explicit ScheduleModel(const Graph& graph, bool in_turn = false);

  const Graph& graph() const { return graph_; }
  // The runs of plain training. An op that plain training leaves out has a run, too, with some
  // variant that can be its first run. A position is the place of an op here, which is its place in
  // the graph.
  const std::vector<Run>& plain() const { return plain_; }
  const std::vector<Interval>& intervals() const { return intervals_; }
  Schedule keep_all() const;
  // keep_all() with other realizations of choices, where these take no longer and hold less memory.
  // A search for less memory need not find them.
  const Schedule& lean() const { return lean_; }
  // Returns whether the op at this position may be put off.
  bool can_wait(int32_t position) const;
  // Returns the interval of a value in which a position lies, before plain training's op there
  // runs, or -1 if there is none.
  int32_t interval_at(ValueIndex value, int32_t position) const;
  // Returns the first interval of a value. The intervals of a value end where those of the next
  // value begin.
  int32_t first_interval(ValueIndex value) const { return first_interval_[value]; }
  // Returns the last interval of a value that begins before a position, or -1 if there is none.
  int32_t interval_before(ValueIndex value, int32_t position) const;
  // Returns the time of the fastest re-run that makes a value, without the re-runs for what that
  // one reads.
  int64_t rerun_time(ValueIndex value) const { return rerun_time_[value]; }

  // All variants of all ops; the last one has no op, and reads the results.
  const OpVariant& op_variant(int32_t index) const { return op_variants_[index]; }
  int32_t op_variant_of(OpIndex op, int32_t variant) const {
    return first_op_variant_[op] + variant;
  }
  int32_t end_op_variant() const { return static_cast<int32_t>(op_variants_.size()) - 1; }
  List reads(const OpVariant& op_variant) const {
    return list(op_variant.reads, op_variant.writes);
  }
  List writes(const OpVariant& op_variant) const {
    return list(op_variant.writes, op_variant.taken);
  }
  List taken(const OpVariant& op_variant) const { return list(op_variant.taken, op_variant.end); }
  // Returns the op variants that make a value when it is needed.
  const std::vector<int32_t>& makers(ValueIndex value) const { return makers_[value]; }
  // Returns the op variants that read a value and leave it live. The list is empty if no op variant
  // takes the value.
  const std::vector<int32_t>& readers(ValueIndex value) const { return readers_[value]; }
  // Returns the ops that draw random numbers, ascending. Their first runs keep this order.
  const std::vector<OpIndex>& random() const { return random_; }
  const std::vector<Touch>& touches(int32_t position) const { return touches_[position]; }
  // Returns whether the schedule runs the op at all.
  bool active(const Schedule& schedule, OpIndex op) const {
    return choice_[op] < 0 || schedule.realization[choice_[op]] == realization_[op];
  }
  // Returns the choice that an op belongs to; -1: none.
  int32_t choice(OpIndex op) const { return choice_[op]; }
  // Returns whether the op has variants for first runs alone, or for re-runs alone.
  bool has_roles(OpIndex op) const { return has_roles_[op]; }

  int64_t bytes(ValueIndex value) const { return bytes_[value]; }
  bool is_input(ValueIndex value) const { return is_input_[value]; }
  bool is_result(ValueIndex value) const { return is_result_[value]; }
  int64_t always() const { return always_; }  // bytes of inputs, and fixed bytes

 private:
  List list(int32_t begin, int32_t end) const {
    return {lists_.data() + begin, static_cast<size_t>(end - begin)};
  }
  void add_op_variants();
  void add_readers();
  void add_intervals();
  void find_lean();

  const Graph& graph_;
  const bool in_turn_;
  std::vector<Run> plain_;
  std::vector<int32_t> choice_, realization_;  // by op; -1: in no choice
  std::vector<char> has_roles_;                // by op
  std::vector<OpIndex> random_;
  std::vector<int32_t> first_op_variant_;  // by op
  std::vector<OpVariant> op_variants_;
  std::vector<ValueIndex> lists_;
  std::vector<Interval> intervals_;
  std::vector<int32_t> first_interval_;                 // by value, and one more
  std::vector<std::vector<Touch>> touches_;             // by position
  std::vector<std::vector<int32_t>> makers_, readers_;  // by value
  std::vector<int64_t> rerun_time_;                     // by value
  std::vector<int64_t> bytes_;                          // by value
  std::vector<char> is_input_, is_result_;              // by value
  int64_t always_ = 0;
  Schedule lean_;
};

}  // namespace reprise::internal::schedule
