// A Frontier is the time/memory curve of a problem.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

struct FrontierPoint {
  Bytes budget;  // the smallest budget at which `time` is reached
  Bytes peak;
  Nanos time;
  Nanos lower_bound;

  bool operator==(const FrontierPoint&) const = default;
};

// Budgets ascend, and times descend strictly. For a budget B, the planner's best time is that of
// the last point whose budget is at most B. Below the first point the planner has no plan.
struct Frontier {
  ProblemId problem;
  std::string planner;
  std::vector<FrontierPoint> points;
  std::string schedule_class = {};  // The lower bounds hold for this class.

  bool operator==(const Frontier&) const = default;
};

// Returns the curve with at most `points` points, and at least two: the first, the last, and
// between them points that are evenly apart in time. For a budget between its points, a thinned
// curve gives a time that can be reached but that may not be the best. The cost is O(points of the
// curve).
Frontier thinned(const Frontier& frontier, size_t points);

}  // namespace reprise
