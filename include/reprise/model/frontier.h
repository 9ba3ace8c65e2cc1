// The time/memory curve of a problem.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

struct FrontierPoint {
  Bytes budget;  // the smallest at which `time` is reached
  Bytes peak;
  Nanos time;
  Nanos lower_bound;

  bool operator==(const FrontierPoint&) const = default;
};

// Budgets ascending, times strictly descending. For every budget B the best time of the planner is that
// of the last point with budget <= B; below the first point it has no plan.
struct Frontier {
  ProblemId problem;
  std::string planner;
  std::vector<FrontierPoint> points;
  std::string schedule_class = {};  // what the lower bounds refer to

  bool operator==(const Frontier&) const = default;
};

// The same curve with at most `points` points (at least 2): the first, the last, and of the others
// those that keep the steps between neighbours even in time. What is left out only makes the answer
// for budgets between points slower than it need be, never wrong. O(points of the curve).
Frontier thinned(const Frontier& frontier, size_t points);

}  // namespace reprise
