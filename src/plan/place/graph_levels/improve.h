// improve() is the local search of this room. It changes what happens to single values, builds the
// exact flow of each change, and keeps what is not much worse. So its judge is the exact plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/graph/schedule/schedule.h"
#include "plan/graph/search/anneal.h"
#include "plan/place/anneal.h"
#include "plan/place/flow.h"
#include "plan/place/lanes.h"

namespace reprise::internal::graph_levels {

using place::LaneTimes;
using place::WalkLimits;
using place::FlowCost;
using place::kStays;

// Fates say what happens to each value of a graph. The schedule says what is kept and what is made
// again, each interval may have a lane for its gaps, and what has a home elsewhere stays or moves.
struct Fates {
  schedule::Schedule schedule;
  std::vector<int8_t> lanes;  // as a flow has them (place/flow.h)

  bool operator==(const Fates&) const = default;
};

using Candidate = place::Candidate<Fates>;

// Searches work with these objects, and all must outlive them. Several searches may share a
// workbench.
struct Workbench {
  const schedule::ScheduleModel& model;
  const search::ScheduleMoves& changes;
  const LaneTimes& lane_times;
  std::vector<int32_t> movable;  // the intervals with ops between their ends
  std::vector<int32_t> others;   // the others, between whose ends there may be re-runs
  int64_t budget = 0;
  double price = 0;  // the time that a byte above the budget counts for, while a search goes on
  std::vector<int32_t> homes = {};  // the groups that may stay, as positions in Fates::lanes
};

// Lists the intervals of values with bytes that have ops between their ends, or those that have
// none.
std::vector<int32_t> movable_intervals(const schedule::ScheduleModel& model, bool with_ops);

// Lists the groups of homes that may stay (Workbench::homes).
std::vector<int32_t> homes_that_may_stay(const schedule::ScheduleModel& model,
                                         const place::HomeGroups& homes);

// Lets groups of homes stay, one after the other, where that makes the plan faster.
Candidate with_homes_that_pay(const Workbench& bench, Candidate start,
                              const common::SearchControl& control);

// Returns the fates in which homes move, and nothing else does.
std::vector<int8_t> without_lanes(const Workbench& bench);
// Lets all homes move, and gives a lane to each interval of `movable` that lasts at least as long as its two copies
// together, if at most half of the time of the copies is latency.
std::vector<int8_t> lanes_for_long_gaps(const Workbench& bench);

// Builds the flow of the fates. Returns nothing if the schedule cannot run.
std::optional<FlowCost> build(const Workbench& bench, const Fates& fates, place::Flow& flow);
// Returns the fates with their cost; nothing if the schedule cannot run.
std::optional<Candidate> evaluate(const Workbench& bench, Fates fates);

// Searches from a candidate. Where that fits, the result fits and is not slower.
Candidate improve(const Workbench& bench, Candidate start, const WalkLimits& limits);

}  // namespace reprise::internal::graph_levels
