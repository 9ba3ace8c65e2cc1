// The planner `chain`, as registry.cc has it: the fastest persistent schedule of a chain.
#pragma once

#include <vector>

#include "reprise/plan/planner.h"

namespace reprise::internal::chain {

Answer exact_chain(const ChainProblem& problem);    // chain.cc
Curve exact_frontier(const ChainProblem& problem);  // frontier.cc

}  // namespace reprise::internal::chain
