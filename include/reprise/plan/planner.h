// What a planner is asked and what it answers.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "reprise/plan/plan.h"

namespace reprise {

// What a chain planner is asked. The chain is valid and has no inadmissible option left.
struct ChainProblem {
  const Chain& chain;
  const Graph& graph;  // lower(chain)
  Baseline baseline;
  Bytes budget;
  PlanOptions options;
};

struct GraphProblem {
  const Graph& graph;
  Baseline baseline;
  Bytes budget;
  PlanOptions options;

  // What the plan should fit into: the budget without PlanOptions::reserve.
  Bytes goal() const { return budget - std::min(budget, options.reserve); }
};

// What a planner answers; plan() adds frees, simulates, verifies and fills in the rest.
struct Answer {
  Termination termination = Termination::kTimeLimit;
  std::vector<Run> runs;  // with kOptimal and kFeasible
  Nanos lower_bound;
  std::optional<Bytes> smallest_budget;  // with kInfeasible; may be with kTimeLimit
  std::string blocking_op;               // with kInfeasible
  Bytes search_memory;
  std::string schedule_class;  // empty: that of the planner
};

// What a planner answers to the question for its curve.
struct Curve {
  std::vector<FrontierPoint> points;  // budgets ascending, times strictly descending
  std::string schedule_class = {};    // empty: that of the planner
};

}  // namespace reprise
