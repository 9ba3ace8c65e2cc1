// Carries a schedule, or runs, from one graph to another.
#pragma once

#include <optional>
#include <vector>

#include "plan/graph/schedule/schedule.h"

namespace reprise::internal::graph {

// The schedule as one of the graph `to`. That graph has the values of `from`, and by name the ops
// and variants that the schedule uses; it may have others, too. None if something is missing. What
// the schedule does between two ops of `from` it does between all ops of `to` that stand there. A
// value that is made by the fastest variant (kFastest) may be made by another variant of `to`.
std::optional<schedule::Schedule> carried_over(const schedule::ScheduleModel& from,
                                               const schedule::Schedule& schedule,
                                               const schedule::ScheduleModel& to);

// The same runs in the graph `to`. None if an op or a variant is missing.
std::optional<std::vector<Run>> carried_over(const Graph& from, const std::vector<Run>& runs,
                                             const Graph& to);

}  // namespace reprise::internal::graph
