// Makes schedules that a search starts from. Each of them keeps what is worth its price. The price
// of a byte rises where a schedule needs too much memory.
#pragma once

#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/starts/params.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// Returns some schedules whose peaks are within the budget or somewhat above it, the most promising
// first. The list is empty if the bound has no instant. `over` is the time that a byte above the
// budget counts for. Without a time limit, equal arguments give equal schedules. The function takes
// some dozens of minimum cuts and walks over the graph.
std::vector<schedule::Schedule> schedules_at_prices(
    const schedule::ScheduleModel& model, const schedule::Schedule& base,
    const common::GraphFacts& facts, const bound::GraphBound& bound, Bytes budget, double over,
    const common::SearchControl& control, const StartParams& params = {});

}  // namespace reprise::internal::starts
