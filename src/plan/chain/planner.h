// The planner `chain` finds the fastest persistent schedule of a chain, or a faster schedule that
// also drops inputs. registry.cc has its row.
#pragma once

#include <vector>

#include "reprise/plan/planner.h"

namespace reprise::internal::chain {

Answer exact_chain(const ChainProblem& problem);    // chain.cc
Curve exact_frontier(const ChainProblem& problem);  // frontier.cc

}  // namespace reprise::internal::chain
