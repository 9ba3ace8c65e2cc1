// Turns cuts into plans.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/pipeline/candidate.h"
#include "plan/pipeline/part_costs.h"

namespace reprise::internal::pipeline {

// Simulates the cuts in the order of the rule of `costs`, with the fastest ways of their parts and
// several slacks for messages. How many bytes messages take depends on the order. So a part on a
// device that is over its budget gets another way, which has as many bytes less.
void try_cuts(PartCosts& costs, const std::vector<size_t>& cuts, BestPlan& best);

}  // namespace reprise::internal::pipeline
