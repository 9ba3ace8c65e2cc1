// improve() is the local search of this room. It changes what happens to single values, builds the
// exact flow of each change, and keeps what is not much worse. So its judge is the exact plan.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/search/anneal.h"
#include "plan/place/flow.h"
#include "plan/place/lanes.h"

namespace reprise::internal::graph_levels {

using place::Carrier;
using place::FlowCost;
using place::kStays;

// Fates say what happens to each value of a graph. The schedule says what is kept and what is made
// again, and each interval may have a lane for its gaps.
struct Fates {
  schedule::Schedule schedule;
  std::vector<int8_t> lanes;  // by interval: a lane, or kStays

  bool operator==(const Fates&) const = default;
};

// A Candidate is a plan in the making.
struct Candidate {
  Fates fates;
  FlowCost cost;
};

// Searches work with these objects, and all must outlive them. Several searches may share a
// workbench.
struct Workbench {
  const schedule::ScheduleModel& model;
  const search::ScheduleMoves& changes;
  const Carrier& carrier;
  std::vector<int32_t> movable;  // the intervals with ops between their ends
  std::vector<int32_t> others;   // the others, between whose ends there may be re-runs
  int64_t budget = 0;
  double price = 0;  // the time that a byte above the budget counts for, while a search goes on
  const common::SearchControl& control;

  bool fits(const Candidate& candidate) const { return candidate.cost.peak <= budget; }
};

// Lists the intervals of values with bytes that have ops between their ends, or those that have
// none.
std::vector<int32_t> movable_intervals(const schedule::ScheduleModel& model, bool with_ops);

// Gives a lane to each interval of `movable` that lasts at least as long as its two copies
// together, if at most half of the time of the copies is latency.
std::vector<int8_t> lanes_for_long_gaps(const Workbench& bench);

// Returns the cost of the fates; nothing if the schedule cannot run.
std::optional<Candidate> evaluate(const Workbench& bench, Fates fates);

// An Effort limits a search. If the flows are done before the time is, equal arguments give equal
// results.
struct Effort {
  int64_t evaluations = 0;               // flows to build
  double share = 1;                      // of the time that is left to the workbench's control
  uint64_t seed = 0;                     // searches with different seeds go different ways
  int64_t floor = 0;                     // a time that no plan beats: the search ends there
  bool again = true;                     // false: only lanes change, and nothing more is made again
  double tolerance = 0.6;                // at first, in mean times of an op
  std::function<void()> report = [] {};  // is called now and then; may throw
};

// Searches from a candidate. Where that fits, the result fits and is not slower.
Candidate improve(const Workbench& bench, Candidate start, const Effort& effort);

}  // namespace reprise::internal::graph_levels
