// One rank plans for all.
#pragma once

#include <functional>
#include <string>

#include "reprise/model/graph.h"
#include "reprise/plan/plan.h"
#include "runtime/distributed/ranks.h"

namespace reprise::runtime::internal::distributed {

// Lets rank 0 search, and gives its answer to all ranks. Every rank verifies the plan on its graph,
// for the budget, and all say yes before one of them gets it. Throws what the search throws, and
// InputError if a rank refuses the plan; on all ranks.
PlanResult plan_of_first(Ranks& ranks, const Graph& graph, Bytes budget,
                         const std::function<PlanResult()>& search);

// Throws InputError on all ranks unless `objection` is empty on all of them.
void agree_on_plan(Ranks& ranks, const std::string& objection);

}  // namespace reprise::runtime::internal::distributed
