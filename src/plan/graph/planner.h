// The planner `graph` plans any graph, op by op, with a proven bound.
#pragma once

#include <vector>

#include "plan/graph/params.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::graph {

// With the default parameters, as the registry calls it.
Answer search_graph(const GraphProblem& problem);
std::vector<Answer> graph_frontier(const GraphProblem& problem);

// These functions do the same with parameters, for tests and experiments.
Answer search_graph(const GraphProblem& problem, const GraphSearchParams& params);  // graph.cc
std::vector<Answer> graph_frontier(const GraphProblem& problem,
                                   const GraphSearchParams& params);  // frontier.cc

}  // namespace reprise::internal::graph
