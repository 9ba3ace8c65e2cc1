// Carries a schedule, or runs, from one graph to another.
#pragma once

#include <optional>
#include <vector>

#include "plan/graph/schedule/schedule.h"

namespace reprise::internal::graph {

// Returns the schedule as one of the graph `to`. The graph `to` has the values of `from`, and by
// name the ops and variants that the schedule uses; it may have others, too. Returns nothing if
// something is missing. If the schedule does something between two ops of `from`, the result does
// the same between all ops of `to` that stand there. A value that is made by the fastest variant
// (kFastest) may be made by another variant of `to`.
std::optional<schedule::Schedule> carried_over(const schedule::ScheduleModel& from,
                                               const schedule::Schedule& schedule,
                                               const schedule::ScheduleModel& to);

// Returns the same runs in the graph `to`, or nothing if an op or a variant is missing.
std::optional<std::vector<Run>> carried_over(const Graph& from, const std::vector<Run>& runs,
                                             const Graph& to);

}  // namespace reprise::internal::graph
