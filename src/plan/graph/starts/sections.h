// Makes a schedule that a search starts from. It serves steps of several passes, each of which
// needs too much memory.
#pragma once

#include <optional>

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/starts/params.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// Memory rises and falls several times in a step in parts along the batch, for example:
//
//     memory    1st section        2nd section
//                  /\                 /\  /\           the highest peak comes first,
//     budget  ----/--\---------------/--\/--\-----     then the highest of those that are left
//                /    \_____________/        \____
//
// Where `base` needs most memory, the schedule keeps what is best to keep there. Then the same is
// done where it needs most now, until all of it is within the budget or time is up. A place is left
// as it is if the values that are made again there need too much. Returns nothing if there is only
// one such place, or if `base` cannot run. The function takes O(peaks) cuts and
// O(peaks · log ops) walks over the graph.
std::optional<schedule::Schedule> schedule_of_sections(const schedule::ScheduleModel& model,
                                                       const schedule::Schedule& base,
                                                       const common::GraphFacts& facts,
                                                       Bytes budget,
                                                       const common::SearchControl& control,
                                                       const StartParams& params = {});

}  // namespace reprise::internal::starts
