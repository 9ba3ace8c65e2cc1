// Schedules to start a search from: what one instant keeps at some price of a byte, and rungs in the ladders of values
// that are made one from the other; mixes of two such.
#pragma once

#include <vector>

#include "plan/graph/bound/bound.h"
#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// The best for ladders of several lengths, by their times and what they are above the budget; none where the bound has
// no instant. Without a limit of time the same question has the same answer. O(a hundred minimum cuts and walks over
// the graph).
std::vector<schedule::Schedule> schedules_with_rungs(const schedule::ScheduleModel& model, const schedule::Schedule& base,
                                           const common::GraphFacts& facts, const bound::GraphBound& bound,
                                           Bytes budget, const common::SearchControl& control);

}  // namespace reprise::internal::starts
