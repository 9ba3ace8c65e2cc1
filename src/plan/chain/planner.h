// The planner `chain` finds the fastest persistent schedule of a chain, or a faster schedule that
// also drops inputs. The planner `floating` also lets checkpoints move. registry.cc has their rows.
#pragma once

#include <vector>

#include "reprise/plan/planner.h"

namespace reprise::internal::chain {

Answer exact_chain(const ChainProblem& problem);     // chain.cc
Curve exact_frontier(const ChainProblem& problem);   // frontier.cc
Answer floating_chain(const ChainProblem& problem);  // floating.cc

}  // namespace reprise::internal::chain
