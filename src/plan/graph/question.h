// One budget of one graph: bound, starts, search.
#pragma once

#include <optional>
#include <vector>

#include "plan/graph/search/anneal.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::graph {

struct GraphFinding {
  std::optional<search::FoundSchedule> best;  // within the goal
  search::FoundSchedule smallest;             // of all that the search met
  bound::GraphBound bound;
  bool near = false;  // `best` takes the time of the bound, or so little more that it is enough
  Bytes memory;       // of the schedules that were held
};

// The best schedule that the search finds within a goal that is the budget or less; the bound is that of the
// budget. `seeds`: those of other budgets of the same graph, which
// take the place of some of the starts. Without a limit of time the same question has the same
// answer, whatever the number of threads. If none of the starts fits, this share of the time may be
// spent on finding a first one that does.
GraphFinding find_schedule(const schedule::ScheduleModel& model, Bytes budget, Bytes goal, int threads,
                           const std::vector<schedule::Schedule>& seeds, common::SearchControl& control,
                           double share_for_first = 1);

std::vector<Run> runs_of(const schedule::ScheduleModel& model, const schedule::Schedule& schedule);

}  // namespace reprise::internal::graph
