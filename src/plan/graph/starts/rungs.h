// Makes schedules to start a search from. Each keeps what one instant keeps at some price of a
// byte, and also some values, the rungs, in long rows of values that are made one from the other.
#pragma once

#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/starts/params.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// Returns the best mixes of two ladders, then the best ladders, each by its time and the bytes
// above the budget. The list is empty if the bound has no instant. Without a time limit the same
// question has the same answer. O(a hundred minimum cuts and walks over the graph).
std::vector<schedule::Schedule> schedules_with_rungs(const schedule::ScheduleModel& model,
                                                     const schedule::Schedule& base,
                                                     const common::GraphFacts& facts,
                                                     const bound::GraphBound& bound, Bytes budget,
                                                     const common::SearchControl& control,
                                                     const StartParams& params = {});

}  // namespace reprise::internal::starts
