// Says why a captured step has no plan within its budget, and what would help.
#pragma once

#include <string>

#include "reprise/model/graph.h"
#include "reprise/plan/plan.h"

namespace reprise::runtime::internal::graph {

// Returns the bytes of the gradients that wait for the optimizer when the step ends.
Bytes gradients_held(const Graph& graph);

// Says in words why `result` has no plan of the graph. If gradients that wait for the optimizer are
// a large share of the smallest peak, the text gives the share and names the option with which they
// do not wait. `with_optimizer` is true if the step has its optimizer already.
std::string why_no_plan(const Graph& graph, const PlanResult& result, bool with_optimizer);

}  // namespace reprise::runtime::internal::graph
