// This is local search over the schedules of a graph: several walkers anneal in rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/search/anneal.h"
#include "plan/graph/search/params.h"
#include "reprise/model/graph.h"

namespace reprise::internal::search {

class GraphSearch {
 public:
  // `budget` is in bytes. Plain training is the first schedule that is looked at. The number of
  // threads does not change the answer: the size of the graph says how many walkers a round has,
  // and each walker draws its own random numbers.
  GraphSearch(const schedule::ScheduleModel& model, int64_t budget, int threads,
              common::SearchControl& control, const SearchParams& params = {});

  // The fastest schedule within the budget so far; on ties the one with fewer runs.
  const std::optional<FoundSchedule>& best() const { return best_; }
  std::vector<Run> runs_of_best() const;
  // Returns the schedule with the smallest peak so far.
  const FoundSchedule& smallest() const { return *smallest_; }
  // Returns whether the best schedule is so near the bound that no more effort is worthwhile. Never
  // true of a small graph.
  bool is_near(int64_t bound) const;
  // Returns whether the graph is so large that less is tried for it.
  bool is_large() const { return moves_.intervals.size() >= params_.large_graph; }
  // Returns the time that a byte above the budget counts for.
  double price_of_excess() const { return params_.price_of_excess * rate_; }
  // Returns the bytes of all schedules that the search holds.
  Bytes memory() const;

  // Takes schedules as they are, and returns those that can run with their costs.
  std::vector<FoundSchedule> walk(const std::vector<schedule::Schedule>& schedules);

  // Takes schedules as they are, and repairs them: drops at their peaks until they fit or nothing
  // is left to drop. Once there is a plan, repairs end when `control` is out of time, as the rest
  // of the time is better spent on the schedules that were found.
  void consider(const std::vector<schedule::Schedule>& schedules,
                const common::SearchControl& control);
  // The same for schedules that were made for this budget. They do not count for smallest().
  void consider_for_budget(const std::vector<schedule::Schedule>& schedules,
                           const common::SearchControl& control);

  // Looks for a schedule that fits, and ends with the first one. Its work depends only on the graph
  // and on the schedules that were considered for any budget. So if a search for a smaller budget
  // ends with some smallest(), a search for the budget of that peak finds a schedule. No plan has a
  // smaller peak than `least_peak`; if that is above the budget, a few rounds will do.
  void shrink(int64_t least_peak, const common::SearchControl& control);

  // Anneals the starts that are above the budget until they fit. A byte costs more here than in
  // improve().
  void fit(int64_t bound);

  // Looks for faster schedules, from the best schedule and from the starts that came near it. It
  // ends when the time is `bound`, when several rounds in a row find nothing better, or when time
  // is up. Far from the bound, other courses from the same starts follow, and it ends when several
  // of them bring nothing.
  void improve(int64_t bound);

 private:
  double mean_time() const;
  void raise_price(const std::vector<FoundSchedule>& pool);
  void in_parallel(size_t count, const std::function<void(size_t)>& work);
  void collect(const Annealer& walker, bool counts_as_smallest);
  void repair(const std::vector<schedule::Schedule>& schedules, bool counts_as_smallest,
              const common::SearchControl& control);
  struct Turn {
    size_t round, first;  // `first` is the place of the first walker among the turns of the round
    int course;
  };
  void run_course(std::vector<FoundSchedule> pool, int course, int64_t bound);
  void anneal_some(const std::vector<FoundSchedule>& pool, size_t used, Turn turn_of, int64_t bound,
                   std::vector<FoundSchedule>& found);
  // Returns whether the best schedule is above the bound by less than bound / part. Never true of a
  // small graph.
  bool is_within(int64_t bound, int64_t part) const;
  double rank(const FoundSchedule& found) const;
  bool gains(int64_t before, int64_t after) const;
  int64_t patience() const;
  int64_t steps_of_a_round() const;

  SearchGoal goal_of(double price) const;

  const SearchParams params_;
  const schedule::ScheduleModel& model_;
  const ScheduleMoves moves_;
  const int64_t budget_;
  const size_t threads_;
  common::SearchControl& control_;
  std::vector<std::unique_ptr<Annealer>> walkers_;
  uint64_t seed_ = 0;
  std::optional<FoundSchedule> best_, smallest_;
  std::vector<FoundSchedule> starts_;
  std::vector<FoundSchedule> small_;  // the starts that do not depend on the budget
  double rate_ = 1;   // time of making all values again, for each byte of plain training's peak
  double price_ = 0;  // of a byte above the budget, in improve()
};

}  // namespace reprise::internal::search
