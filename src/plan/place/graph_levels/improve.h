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
using place::Effort;
using place::FlowCost;
using place::kStays;

// Fates say what happens to each value of a graph. The schedule says what is kept and what is made
// again, and each interval may have a lane for its gaps.
struct Fates {
  schedule::Schedule schedule;
  std::vector<int8_t> lanes;  // by interval: a lane, or kStays

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
};

// Lists the intervals of values with bytes that have ops between their ends, or those that have
// none.
std::vector<int32_t> movable_intervals(const schedule::ScheduleModel& model, bool with_ops);

// Gives a lane to each interval of `movable` that lasts at least as long as its two copies
// together, if at most half of the time of the copies is latency.
std::vector<int8_t> lanes_for_long_gaps(const Workbench& bench);

// Builds the flow of the fates. Returns nothing if the schedule cannot run.
std::optional<FlowCost> build(const Workbench& bench, const Fates& fates, place::Flow& flow);
// Returns the fates with their cost; nothing if the schedule cannot run.
std::optional<Candidate> evaluate(const Workbench& bench, Fates fates);

// Searches from a candidate. Where that fits, the result fits and is not slower.
Candidate improve(const Workbench& bench, Candidate start, const Effort& effort);

}  // namespace reprise::internal::graph_levels
