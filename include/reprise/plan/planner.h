// This header defines the problems that planners get and the answers that they give.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/frontier.h"
#include "reprise/model/graph.h"
#include "reprise/model/join.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"
#include "reprise/plan/options.h"

namespace reprise {

// A ChainProblem is what a chain planner is asked. The chain is valid, and its inadmissible options
// are removed.
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

  // Returns the bytes that the plan should fit into: the budget without PlanOptions::reserve.
  Bytes goal() const { return budget - std::min(budget, options.reserve); }
};

// A JoinProblem is what a planner of joins is asked. The join is valid, and its inadmissible
// options are removed.
struct JoinProblem {
  const Join& join;
  const Graph& graph;  // lower(join)
  Baseline baseline;
  Bytes budget;
  PlanOptions options;
};

// An Answer is what a planner returns. The positions of its runs are those of the problem's graph;
// the planner of a join chooses the order of the backwards. plan() adds the frees, simulates,
// verifies and fills in the rest.
struct Answer {
  Termination termination = Termination::kTimeLimit;
  std::vector<Run> runs;  // with kOptimal and kFeasible
  // A planner that moves values gives the whole list of actions, with all frees, in place of runs.
  std::vector<Action> actions = {};
  Nanos lower_bound;
  std::optional<Bytes> smallest_budget;  // with kInfeasible; optional with kTimeLimit
  std::string blocking_op;               // with kInfeasible
  Bytes search_memory;
  std::string schedule_class;  // empty: the class of the planner

  bool found() const {
    return termination == Termination::kOptimal || termination == Termination::kFeasible;
  }
  // Says that the plan takes this time. It is optimal if the lower bound is as long.
  void set_found(Nanos time) {
    termination = time == lower_bound ? Termination::kOptimal : Termination::kFeasible;
  }
};

// A Curve is what a planner returns for all budgets at once.
struct Curve {
  std::vector<FrontierPoint> points;  // budgets ascending, times strictly descending
  std::string schedule_class = {};    // empty: the class of the planner
};

}  // namespace reprise
