// Local search over the schedules of a graph.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "plan/graph_schedule.h"
#include "plan/search_control.h"
#include "reprise/model/graph.h"

namespace reprise::internal {

class GraphSearch {
 public:
  struct Found {
    int64_t time = 0, peak = 0;
    Schedule schedule;
    std::vector<Run> runs;
  };

  // The budget in bytes. Plain training is the first schedule that is looked at.
  GraphSearch(const Graph& graph, int64_t budget, SearchControl& control);

  const ScheduleWalk& walk() const { return walk_; }
  // The fastest schedule within the budget so far; on ties fewer runs.
  const std::optional<Found>& best() const { return best_; }
  // The one with the smallest peak so far.
  const Found& smallest() const { return smallest_; }
  // Of the schedules that are held.
  Bytes memory() const;

  // Takes a schedule as it is, and then drops at its peak until it fits or nothing is left to drop.
  void consider(Schedule schedule);
  // The same for a schedule that was made for this budget: it does not count as the smallest.
  void consider_for_budget(Schedule schedule);

  // Looks for a schedule that fits: what it does depends on the graph and the schedules considered
  // alone, and ends with the first one within the budget. So a budget that is smallest() for a
  // smaller one is met. `hopeless`: no plan fits, so that a few rounds will do.
  void shrink(bool hopeless);

  // From the best schedule, or a start that came near it, looks for faster ones. Ends at `bound`,
  // when rounds in a row find nothing better, or when time is up.
  void improve(int64_t bound);

 private:
  // What a search minimises: time_weight * time + memory_weight * (peak beyond the goal).
  struct Goal {
    double time_weight = 1, memory_weight = 1;
    int64_t peak = 0;
  };
  enum class Part { kGap, kVariant, kOnDemand, kRealization, kEarly };
  struct Undo {
    Part part;
    int32_t at, before;
  };

  bool evaluate(const Schedule& schedule, int64_t most = INT64_MAX);
  void remember(const Schedule& schedule);
  double cost(const Goal& goal) const;
  void find_droppable();
  void repair(Schedule& schedule);
  void anneal(Schedule start, const Goal& goal, double hot, int64_t steps, bool until_it_fits,
              int64_t bound);
  void look_around(const Schedule& schedule);
  void propose(Schedule& schedule, bool over);
  void set_gap(Schedule& schedule, int32_t gap, Keeping keeping);
  void set_variant(Schedule& schedule, int32_t position);
  void set_on_demand(Schedule& schedule, int32_t position);
  void set_realization(Schedule& schedule);
  void change_early(Schedule& schedule);
  void put_off(Schedule& schedule, int32_t position);
  void undo(Schedule& schedule);
  int64_t patience() const;
  int64_t steps_of_a_round() const;
  uint64_t below(size_t count) { return random_() % count; }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  const Graph& graph_;
  ScheduleWalk walk_;
  const int64_t budget_;
  SearchControl& control_;
  std::mt19937_64 random_{1};
  std::optional<Found> best_;
  Found smallest_;
  std::vector<Found> starts_;
  std::vector<int32_t> movable_;                  // gaps
  std::vector<int32_t> flexible_;                 // positions with several variants
  std::vector<int32_t> repeatable_;               // positions with several variants on demand
  std::vector<int32_t> patient_;                  // positions that may be put off
  std::vector<std::vector<int32_t>> first_ways_;  // by position: variants that may run there
  std::vector<int32_t> droppable_, dropped_;      // gaps across the peak, gaps that are not kept
  std::vector<Undo> undo_;
  std::vector<Early> early_before_;  // with Part::kEarly
  double rate_ = 1;                  // time per byte that dropping everything would cost
};

}  // namespace reprise::internal
