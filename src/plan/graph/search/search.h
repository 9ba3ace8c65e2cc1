// Local search over the schedules of a graph: several walkers in rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "plan/graph/search/anneal.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/common/search_control.h"
#include "reprise/model/graph.h"

namespace reprise::internal::search {

class GraphSearch {
 public:
  // The budget in bytes. Plain training is the first schedule that is looked at. The number of
  // threads does not change the answer: a round has as many walkers as the size of the graph asks
  // for, and each draws numbers of its own.
  GraphSearch(const schedule::ScheduleModel& model, int64_t budget, int threads, common::SearchControl& control);

  // The fastest schedule within the budget so far; on ties fewer runs.
  const std::optional<FoundSchedule>& best() const { return best_; }
  std::vector<Run> runs_of_best() const;
  // The one with the smallest peak so far.
  const FoundSchedule& smallest() const { return *smallest_; }
  // Of a graph that is not small: so near the bound that no more effort is worthwhile.
  bool is_near(int64_t bound) const;
  // Time that a byte above the budget counts for.
  double price_of_excess() const { return 4 * rate_; }
  // Of the schedules that are held.
  Bytes memory() const;

  // Takes schedules as they are, and then drops at their peaks until they fit or nothing is left to
  // drop. Once there is a plan, only as long as `control` says: the rest of the time is better spent
  // on what was found.
  void consider(const std::vector<schedule::Schedule>& schedules, const common::SearchControl& control);
  // The same for schedules that were made for this budget: they do not count as the smallest.
  void consider_for_budget(const std::vector<schedule::Schedule>& schedules, const common::SearchControl& control);

  // Looks for a schedule that fits: what it does depends on the graph and the schedules considered
  // alone, and ends with the first one within the budget. So a budget that is smallest() for a
  // smaller one is met. No plan has a smaller peak than `least_peak`: where that is above the budget,
  // a few rounds will do.
  void shrink(int64_t least_peak, const common::SearchControl& control);

  // Anneals starts that are over the budget until they fit: what memory costs counts for more there
  // than in improve().
  void fit(int64_t bound);

  // From the best schedule, or a start that came near it, looks for faster ones. Ends at `bound`,
  // when rounds in a row find nothing better, or when time is up; far from the bound, when some other
  // courses from the same starts bring nothing either.
  void improve(int64_t bound);

 private:
  double mean_time() const;
  void raise_price(const std::vector<FoundSchedule>& pool);
  void in_parallel(size_t count, const std::function<void(size_t)>& work);
  void collect(const Annealer& walker, bool counts_as_smallest);
  void repair(const std::vector<schedule::Schedule>& schedules, bool counts_as_smallest,
              const common::SearchControl& control);
  struct Turn {
    size_t round, first;  // the first walker's place among the turns of the round
    int course;
  };
  void run_course(std::vector<FoundSchedule> pool, int course, int64_t bound);
  void anneal_some(const std::vector<FoundSchedule>& pool, size_t used, Turn turn_of, int64_t bound,
                   std::vector<FoundSchedule>& found);
  // Of a graph that is not small: the best is above the bound by less than such a part of it.
  bool is_within(int64_t bound, int64_t part) const;
  double rank(const FoundSchedule& found) const;
  bool gains(int64_t before, int64_t after) const;
  int64_t patience() const;
  int64_t steps_of_a_round() const;

  const schedule::ScheduleModel& model_;
  const ScheduleMoves moves_;
  const int64_t budget_;
  const size_t threads_;
  common::SearchControl& control_;
  std::vector<std::unique_ptr<Annealer>> walkers_;
  uint64_t seed_ = 0;
  std::optional<FoundSchedule> best_, smallest_;
  std::vector<FoundSchedule> starts_;
  std::vector<FoundSchedule> small_;  // those of them that do not depend on the budget
  double rate_ = 1;                   // time per byte that dropping everything would cost
  double price_ = 0;                  // of a byte above the budget, in improve()
};

}  // namespace reprise::internal::search
