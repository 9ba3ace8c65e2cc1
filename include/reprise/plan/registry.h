// The registry lists the planners in one table with a row for each. There is no static
// registration.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "reprise/plan/pipeline.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/planner.h"

namespace reprise {

struct PlannerInfo {
  const char* name;
  const char* summary;                                  // one line for people
  const char* schedule_class;                           // the class of its optimum and its bound
  Proof proof;                                          // the plans that its answers speak of
  const char* source;                                   // paper
  Answer (*plan_chain)(const ChainProblem&) = nullptr;  // null: does not plan chains
  Answer (*plan_graph)(const GraphProblem&) = nullptr;  // null: does not plan graphs
  Answer (*plan_join)(const JoinProblem&) = nullptr;    // null: does not plan joins
  PipelineAnswer (*plan_pipeline)(const PipelineProblem&) = nullptr;  // null: no pipelines
  Curve (*chain_frontier)(const ChainProblem&) = nullptr;             // null: has no curve
  // The answer has one plan for each point, peaks ascending, times strictly descending. A null
  // pointer says that the planner has no curve.
  std::vector<Answer> (*graph_frontier)(const GraphProblem&) = nullptr;
  bool slots = false;    // uses PlanOptions::slots
  bool moves = false;    // uses the channels of PlanOptions::machine
  bool devices = false;  // uses all its devices; others see the variants of the first device alone
};

std::span<const PlannerInfo> planners();

// Throws InputError with the list of the known names if `name` is unknown.
const PlannerInfo& find_planner(std::string_view name);

}  // namespace reprise
