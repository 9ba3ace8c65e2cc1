// Schedules to start a search from: what is worth keeping at prices of memory that rise where a
// schedule needs too much.
#pragma once

#include <vector>

#include "plan/graph/bound/bound.h"
#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// Some schedules near the budget, the most promising first, their peaks within it or somewhat
// above; none where the bound has no instant. Without a limit of time the same question
// has the same answer. `over`: time that a byte above the budget counts for. O(some dozens of
// minimum cuts and walks over the graph).
std::vector<schedule::Schedule> schedules_at_prices(const schedule::ScheduleModel& model, const schedule::Schedule& base,
                                          const common::GraphFacts& facts, const bound::GraphBound& bound,
                                          Bytes budget, double over, const common::SearchControl& control);

}  // namespace reprise::internal::starts
