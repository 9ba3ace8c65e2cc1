// The planners there are: one row each, no static registration.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "reprise/plan/planner.h"

namespace reprise {

struct PlannerInfo {
  const char* name;
  const char* summary;                                  // one line for people
  const char* schedule_class;                           // what its optimum and its bound refer to
  Proof proof;                                          // which plans its answers speak of
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
