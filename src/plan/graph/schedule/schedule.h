// Schedules of a graph as what is kept between the ops of plain training, and what they cost.
//
// The ops run in the order of plain training, but for forward ops that are put off until something
// reads what they write. Between two ops that touch a value (its "interval") the value is kept or not.
// What an op reads and is not there is made right before it, with all that this needs in turn. An op
// that is made to run again and takes the memory of a value is preceded by those that make something
// of this value which is kept from now on. Of ops that draw random numbers and were put off those
// before the one that runs come first: they see the numbers of plain training.
// Every value is then freed as with_frees() does: the cost, kept by graph/schedule/ledger.h, is exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::internal::schedule {

enum class Keeping : char {
  kKeep,      // live throughout the interval
  kOnRerun,  // dropped; once it was made again for something else, kept to the end of the interval
  kDrop,      // dropped; what is made again in the interval stays for one op of plain training only
};

struct Interval {
  ValueIndex value;
  // Positions of ops that can touch the value. The last interval of a value ends behind all: there
  // it is live only as long as something that is made again reads it.
  int32_t begin, end;
  bool must_keep;  // cannot be dropped: nothing makes the value a second time
};

inline constexpr int32_t kPutOff = -1;
inline constexpr int32_t kFastest = -1;  // the fastest of those that make most of what is wanted

// The value of a interval is made before the op at a position in it, whether that needs it or not: as
// long as what it is made from is there, or before something else is made.
struct Early {
  int32_t position, interval;

  auto operator<=>(const Early&) const = default;
};

struct Schedule {
  std::vector<Keeping> intervals;         // by interval
  std::vector<int32_t> variant;      // by op; kPutOff: when it is needed
  std::vector<int32_t> on_demand;    // by op: the variant when it is needed; kFastest
  std::vector<int32_t> realization;  // by choice
  std::vector<Early> early;          // ascending

  bool operator==(const Schedule&) const = default;
};

// What every schedule of a graph has in common. The graph must outlive it.
class ScheduleModel {
 public:
  // A variant, with its lists side by side.
  struct OpVariant {
    Run run;
    int64_t time, workspace;
    int32_t reads, writes, taken, end;  // where each list begins
    bool first, again;  // may run when it is needed: as the first run, as a later one
  };
  struct Touch {
    ValueIndex value;
    int32_t interval;  // that begins here
  };
  using List = std::span<const ValueIndex>;

  // O(size of the graph). Throws InputError if the graph has no plain training.
  explicit ScheduleModel(const Graph& graph);

  const Graph& graph() const { return graph_; }
  // The runs of plain training; of an op that it leaves out some variant that can be the first run.
  // A position is an op's place here, which is that in the graph.
  const std::vector<Run>& plain() const { return plain_; }
  const std::vector<Interval>& intervals() const { return intervals_; }
  Schedule keep_all() const;
  // The same with other realizations of choices where these take no longer and hold less: what a search
  // for less memory does not have to find.
  const Schedule& lean() const { return lean_; }
  // Whether the op at this position may be put off.
  bool can_wait(int32_t position) const;
  // Of this value at this position, before the op of plain training runs there; -1: there is none.
  int32_t interval_at(ValueIndex value, int32_t position) const;
  // Those of a value: from this one on until the first of the next value.
  int32_t first_interval(ValueIndex value) const { return first_interval_[value]; }
  // The last that begins before this position; -1: there is none.
  int32_t interval_before(ValueIndex value, int32_t position) const;
  // The time of the fastest op that makes it again, without those that make what that reads.
  int64_t rerun_time(ValueIndex value) const { return rerun_time_[value]; }

  // All variants of all ops, then one without an op that reads the results.
  const OpVariant& op_variant(int32_t index) const { return op_variants_[index]; }
  int32_t op_variant_of(OpIndex op, int32_t variant) const { return first_op_variant_[op] + variant; }
  int32_t end_op_variant() const { return static_cast<int32_t>(op_variants_.size()) - 1; }
  List reads(const OpVariant& op_variant) const { return list(op_variant.reads, op_variant.writes); }
  List writes(const OpVariant& op_variant) const { return list(op_variant.writes, op_variant.taken); }
  List taken(const OpVariant& op_variant) const { return list(op_variant.taken, op_variant.end); }
  // Ways that make a value when it is needed.
  const std::vector<int32_t>& makers(ValueIndex value) const { return makers_[value]; }
  // Ways that read a value and leave it there, if others take it.
  const std::vector<int32_t>& readers(ValueIndex value) const { return readers_[value]; }
  // Ops that draw random numbers, ascending: their first runs keep this order.
  const std::vector<OpIndex>& random() const { return random_; }
  const std::vector<Touch>& touches(int32_t position) const { return touches_[position]; }
  // Whether the schedule runs the op at all.
  bool active(const Schedule& schedule, OpIndex op) const {
    return choice_[op] < 0 || schedule.realization[choice_[op]] == realization_[op];
  }
  // -1: in no choice.
  int32_t choice(OpIndex op) const { return choice_[op]; }
  // Whether it matters for what makes a value if the op has run before.
  bool has_roles(OpIndex op) const { return has_roles_[op]; }

  int64_t bytes(ValueIndex value) const { return bytes_[value]; }
  bool is_input(ValueIndex value) const { return is_input_[value]; }
  bool is_result(ValueIndex value) const { return is_result_[value]; }
  int64_t always() const { return always_; }  // fixed and inputs

 private:
  List list(int32_t begin, int32_t end) const {
    return {lists_.data() + begin, static_cast<size_t>(end - begin)};
  }
  void add_op_variants();
  void add_readers();
  void add_intervals();
  void find_lean();

  const Graph& graph_;
  std::vector<Run> plain_;
  std::vector<int32_t> choice_, realization_;  // by op; -1: in no choice
  std::vector<char> has_roles_;                // by op
  std::vector<OpIndex> random_;
  std::vector<int32_t> first_op_variant_;  // by op
  std::vector<OpVariant> op_variants_;
  std::vector<ValueIndex> lists_;
  std::vector<Interval> intervals_;
  std::vector<int32_t> first_interval_;                      // by value, and one more
  std::vector<std::vector<Touch>> touches_;             // by position
  std::vector<std::vector<int32_t>> makers_, readers_;  // by value
  std::vector<int64_t> rerun_time_;                    // by value
  std::vector<int64_t> bytes_;                          // by value
  std::vector<char> is_input_, is_result_;              // by value
  int64_t always_ = 0;
  Schedule lean_;
};

}  // namespace reprise::internal::schedule
