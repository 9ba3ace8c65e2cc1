// Schedules to start a search from: steps of several passes, each of which needs too much memory.
#pragma once

#include <optional>

#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// Of a graph whose memory rises and falls several times, as that of a step in parts along the batch does: where the
// schedule needs most, keeps what is best to keep there, a mix of two cuts for the values around; then
// where it needs most then, until all of it is within the budget, but for places where what is made again needs too
// much, or time is up. None if one such place is all there is, or if `base` cannot run. O(peaks) cuts and O(peaks · log ops) walks over the graph.
std::optional<schedule::Schedule> schedule_of_sections(const schedule::ScheduleModel& model, const schedule::Schedule& base,
                                             const common::GraphFacts& facts, Bytes budget,
                                             const common::SearchControl& control);

}  // namespace reprise::internal::starts
