// A schedule of one graph as one of another.
#pragma once

#include <optional>

#include "plan/graph_schedule.h"

namespace reprise::internal {

// `to` has the values of `from`, and its ops and variants, by name, or those of them that the schedule uses; it may
// have others, too. None if something is missing. What the schedule does between two ops of `from` it does between
// all ops of `to` that stand there.
std::optional<Schedule> carried_over(const ScheduleModel& from, const Schedule& schedule,
                                     const ScheduleModel& to);

}  // namespace reprise::internal
