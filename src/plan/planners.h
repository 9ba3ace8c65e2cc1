// The functions behind the registry's rows; each is described in its own source file.
#pragma once

#include <vector>

#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "reprise/model/frontier.h"
#include "reprise/plan/registry.h"

namespace reprise::internal {

Answer keep_all_chain(const ChainProblem& problem);
Answer keep_all_graph(const GraphProblem& problem);
Curve keep_all_frontier(const ChainProblem& problem);

Answer periodic_chain(const ChainProblem& problem);
Curve periodic_frontier(const ChainProblem& problem);

Answer revolve_chain(const ChainProblem& problem);
Curve revolve_frontier(const ChainProblem& problem);

Answer exact_chain(const ChainProblem& problem);  // chain.cc
Curve exact_frontier(const ChainProblem& problem);  // chain/frontier.cc

Answer slots_chain(const ChainProblem& problem);

Answer dtr_graph(const GraphProblem& problem);

Answer search_graph(const GraphProblem& problem);  // graph.cc
std::vector<Answer> graph_frontier(const GraphProblem& problem);

// Their families, for planners that need a plan to start from or to fall back on. False when time
// ran out before every candidate was considered.
bool consider_periodic(const Chain& chain, Candidates& candidates, SearchControl& control);
bool consider_revolve(const Chain& chain, Candidates& candidates, SearchControl& control);
bool consider_dtr(const Graph& graph, Bytes budget, Candidates& candidates, SearchControl& control);

}  // namespace reprise::internal
