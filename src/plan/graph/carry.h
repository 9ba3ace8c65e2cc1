// A schedule of one graph as one of another, and its runs.
#pragma once

#include <optional>
#include <vector>

#include "plan/graph/schedule/schedule.h"

namespace reprise::internal::graph {

// `to` has the values of `from`, and its ops and variants, by name, or those of them that the schedule uses; it may
// have others, too. None if something is missing. What the schedule does between two ops of `from` it does between
// all ops of `to` that stand there. What is made again by the fastest way that there is can be made by another one.
std::optional<schedule::Schedule> carried_over(const schedule::ScheduleModel& from, const schedule::Schedule& schedule,
                                     const schedule::ScheduleModel& to);

// The same runs. None if an op or a variant is missing.
std::optional<std::vector<Run>> carried_over(const Graph& from, const std::vector<Run>& runs,
                                             const Graph& to);

}  // namespace reprise::internal::graph
