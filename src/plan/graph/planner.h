// The planner `graph`, as registry.cc has it: any graph, operation by operation, with a proven bound.
#pragma once

#include <vector>

#include "reprise/plan/planner.h"

namespace reprise::internal::graph {

Answer search_graph(const GraphProblem& problem);                  // graph.cc
std::vector<Answer> graph_frontier(const GraphProblem& problem);  // frontier.cc

}  // namespace reprise::internal::graph
