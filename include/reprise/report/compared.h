// A curve of a machine with several memories is best read beside those of plans that do one thing
// alone: make values again, or move them.
#pragma once

#include <string>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/model/frontier.h"
#include "reprise/plan/options.h"

namespace reprise {

// A curve to compare another one with. Only the budgets and times of its points are used.
struct ComparedCurve {
  std::string name;
  std::vector<FrontierPoint> points;

  bool operator==(const ComparedCurve&) const = default;
};

// Returns the curve "recomputing alone", and for a chain also "moving alone". The first one is that
// of frontier() without the machine, and is left out for a graph whose values live elsewhere. The
// second one is that of the planner `offload_only`. The curves share the time limit of `options`,
// whose planner and schedule class are not used. Curves without points are left out. Throws what
// frontier() throws.
std::vector<ComparedCurve> compared_curves(const Problem& problem, const PlanOptions& options);

}  // namespace reprise
