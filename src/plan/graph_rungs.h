// Schedules to start a search from: what one instant keeps, and rungs in the ladders of values that
// are made one from the other.
#pragma once

#include <vector>

#include "plan/graph_bound.h"
#include "plan/graph_facts.h"
#include "plan/graph_schedule.h"
#include "plan/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal {

// The fastest within the budget, for ladders of several lengths, otherwise those with the smallest
// peaks; none where the bound has no instant. Without a limit of time the same question has the same answer. O(some dozens of
// minimum cuts and walks over the graph).
std::vector<Schedule> schedules_with_rungs(const ScheduleModel& model, const Schedule& base,
                                           const GraphFacts& facts, const GraphBound& bound,
                                           Bytes budget, const SearchControl& control);

}  // namespace reprise::internal
