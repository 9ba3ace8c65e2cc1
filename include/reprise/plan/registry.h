// The planners there are: one row each, no static registration.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
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

struct PlannerInfo {
  const char* name;
  const char* summary;                                  // one line for people
  const char* schedule_class;                           // what its optimum and its bound refer to
  const char* source;                                   // paper
  Answer (*plan_chain)(const ChainProblem&) = nullptr;  // null: does not plan chains
  Answer (*plan_graph)(const GraphProblem&) = nullptr;  // null: does not plan graphs
  Curve (*chain_frontier)(const ChainProblem&) = nullptr;  // null: has no curve
  // A plan for each point, peaks ascending, times strictly descending. Null: has no curve.
  std::vector<Answer> (*graph_frontier)(const GraphProblem&) = nullptr;
};

std::span<const PlannerInfo> planners();

// Throws InputError that lists the names there are.
const PlannerInfo& find_planner(std::string_view name);

}  // namespace reprise
