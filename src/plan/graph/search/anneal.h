// An Annealer is one walker of the local search over the schedules of a graph.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/search/params.h"
#include "reprise/model/graph.h"

namespace reprise::internal::search {

// A schedule and what it costs.
struct FoundSchedule {
  int64_t time = 0, peak = 0, run_count = 0;
  schedule::Schedule schedule;
};

// A search minimises this: time_weight * time + memory_weight * bytes above the goal. The bytes are
// those of the peak, and a part of those at each other position. Where many positions are too high,
// the peak alone does not show that a change helps at one of them.
struct SearchGoal {
  double time_weight = 1, memory_weight = 1;
  int64_t peak = 0;
  double elsewhere = 0;  // the part that counts at other positions
};

// ScheduleMoves are the changes that the schedules of a graph allow.
struct ScheduleMoves {
  explicit ScheduleMoves(const schedule::ScheduleModel& model);

  std::vector<int32_t> intervals;                    // intervals that can be dropped
  std::vector<int32_t> flexible;                     // positions with several variants
  std::vector<int32_t> repeatable;                   // positions with several variants on demand
  std::vector<int32_t> patient;                      // positions that may be put off
  std::vector<std::vector<int32_t>> first_variants;  // by position: the variants that may run there
  std::vector<OpIndex> chosen;                       // ops of choices
  double total_rerun_time = 0;                       // time of making every value once again
  // Ops that make a value that can be dropped; the kind of each op; and the ops of each kind. Ops
  // of one kind look alike, with the values that they read and write.
  std::vector<OpIndex> makers;
  std::vector<int32_t> kind;
  std::vector<std::vector<OpIndex>> alike;

 private:
  void find_kinds(const schedule::ScheduleModel& model);
};

class Annealer {
 public:
  // The model, the moves and the parameters must outlive it.
  Annealer(const schedule::ScheduleModel& model, const ScheduleMoves& moves, int64_t budget,
           const SearchParams& params);

  // Forgets what the walker has found. From now on it draws the random numbers of this seed.
  void start(uint64_t seed);

  // Takes a schedule as it is. Returns nothing if it cannot run.
  std::optional<FoundSchedule> walk(const schedule::Schedule& schedule);
  // Takes a schedule as it is. Then drops at its peak the values that free most bytes for the time
  // that they take, until the schedule fits, nothing is left to drop, or the time is above
  // `hopeless`. Returns nothing if the schedule cannot run.
  std::optional<FoundSchedule> repair(const schedule::Schedule& schedule, double rate,
                                      int64_t hopeless, const common::SearchControl& control);

  struct Course {
    SearchGoal goal;
    double hot = 1;  // the first temperature
    int64_t steps = 0;
    bool until_it_fits = false;
    int64_t bound = 0;  // the course ends when the time is no more than this
    const std::vector<FoundSchedule>* others = nullptr;  // schedules that parts may be taken from
  };
  // Simulated annealing from a schedule.
  void anneal(const schedule::Schedule& from, const Course& course,
              const common::SearchControl& control);

  // These are the best schedules since start(): the fastest within the budget, and the one with the
  // smallest peak. Of equally fast schedules, the schedule with fewer runs is best().
  const std::optional<FoundSchedule>& best() const { return best_; }
  const std::optional<FoundSchedule>& smallest() const { return smallest_; }

 private:
  bool assign(const schedule::Schedule& schedule);
  void remember();
  double cost(const SearchGoal& goal) const;
  SearchGoal goal_of_repair(double rate) const;
  FoundSchedule found() const;
  // A Remedy is one small change of a schedule.
  struct Remedy {
    enum Part : char { kInterval, kVariant, kRealization } part;
    int32_t at, to;  // interval, position or choice
  };
  double worth_of_dropping(ValueIndex value) const;
  std::vector<int32_t> droppable() const;
  std::vector<Remedy> remedies() const;
  void add_variants_of(int32_t position, std::vector<Remedy>& found) const;
  void add_realizations_of(OpIndex op, std::vector<Remedy>& found) const;
  void add_variants_of_held(std::vector<Remedy>& found) const;
  int64_t bytes_at_peak(OpIndex op) const;
  void apply(const Remedy& remedy);
  void run_otherwise(int32_t position, int32_t variant);
  void tune(double rate, const common::SearchControl& control);
  bool drop_something(double rate);
  void take_up();
  void note_interval(int32_t interval);
  bool step(const Course& course, double temperature);

  void propose(const Course& course);
  void propose_interval();
  void copy_block();
  void take_over(const std::vector<FoundSchedule>& others);
  void trade();
  bool make_fit(const Course& course);
  size_t some_length() { return size_t{1} << below(6); }
  void set_interval(int32_t interval, schedule::Keeping keeping);
  void drop_at_peak(int candidates = 1);
  void keep_again(int candidates = 1);
  void change_any();
  void change_variant();
  void change_on_demand();
  void change_realization();
  void change_early();
  void put_off();
  uint64_t below(size_t count) { return random_() % count; }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  const schedule::ScheduleModel& model_;
  const ScheduleMoves& moves_;
  const int64_t budget_;
  const SearchParams& params_;
  schedule::ScheduleLedger ledger_;
  std::mt19937_64 random_{1};
  std::optional<FoundSchedule> best_, smallest_;
  double current_ = 0;             // the cost of the current schedule
  bool over_ = false;              // its peak is above the goal
  std::vector<int32_t> dropped_;   // intervals that are not kept
  std::vector<int32_t> place_;     // by interval: its place in dropped_; -1: it is kept
  std::vector<int32_t> changing_;  // the intervals that the proposal changes
  bool large_ = false;             // whether the proposal changes many intervals
};

}  // namespace reprise::internal::search
