// Answers the question for one budget of one graph: bounds, finds starts, and searches.
#pragma once

#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/params.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/search/anneal.h"
#include "reprise/model/units.h"

namespace reprise::internal::graph {

struct GraphFinding {
  std::optional<search::FoundSchedule> best;  // within the goal
  search::FoundSchedule smallest;             // the one with the smallest peak that the search met
  bound::GraphBound bound;
  bool near = false;  // `best` takes the time of the bound, or so little more that it is enough
  Bytes memory;       // that the search held for its schedules
};

// Looks for the best schedule within a goal, which is the budget or less. The bound is that of the
// budget. `seeds` are schedules of other budgets of the same graph; once they give a plan, they
// replace some of the starts. If no start fits, `share_for_first` of the time may be spent on a
// first schedule that does. Without a time limit the same question has the same answer, whatever
// the number of threads.
GraphFinding find_schedule(const schedule::ScheduleModel& model, Bytes budget, Bytes goal,
                           int threads, const std::vector<schedule::Schedule>& seeds,
                           common::SearchControl& control, const GraphSearchParams& params,
                           double share_for_first = 1);

// The runs of a schedule, in order.
std::vector<Run> runs_of(const schedule::ScheduleModel& model, const schedule::Schedule& schedule);

}  // namespace reprise::internal::graph
