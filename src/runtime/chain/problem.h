// This is the problem that the planners are asked about: a chain, or a join if the model has
// several branches.
#pragma once

#include <variant>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/model/join.h"
#include "reprise/model/plan.h"
#include "reprise/plan/plan.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

using Problem = std::variant<Chain, Join>;

// `stages` has the stages of all branches, one branch after the other, and the bytes of all inputs;
// `inputs` are those of each branch. Stages of different branches that use one parameter share
// weights.
Problem problem_of(const PreparedModel& model, const Chain& stages,
                   const std::vector<ChainInput>& inputs);

// Returns the branch of each backward, in the order of the actions. Without actions, the order is
// that of plain training.
Interleaving order_of(const Problem& problem, const std::vector<Action>& actions = {});
Graph lowered(const Problem& problem, const Interleaving& order);

PlanResult plan(const Problem& problem, const PlanOptions& options);

}  // namespace reprise::runtime::internal::chain
