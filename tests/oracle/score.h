// Counts how often a planner of plans with copies finds the best of all plans, and how much it
// loses otherwise. The oracles of the three planners share it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "oracle/exhaustive_places.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"

namespace reprise::testing {

struct Score {
  int64_t questions = 0, optimal = 0, gave_up = 0, refused = 0;
  int64_t impossible = 0, proven = 0;  // questions without a plan; those where that is proven
  int64_t moved = 0;                   // plans that use the second memory
  int64_t bound_exact = 0;
  double worst = 0, sum = 0, gap = 0;
};

inline double share_above(int64_t time, int64_t least) {
  return static_cast<double>(time - least) / static_cast<double>(std::max<int64_t>(1, least));
}

// The oracle's own plan is valid, and as fast as it says.
inline void expect_valid(const Graph& graph, const Machine& machine, Bytes budget,
                         const BestPlan& best) {
  Plan claimed;
  claimed.actions = best.actions;
  for (const Violation& violation : verify(graph, claimed, budget, machine)) {
    ASSERT_EQ(violation.kind, ViolationKind::kFalseClaim) << violation.message;
  }
  ASSERT_EQ(simulate(graph, best.actions, machine).time.count(), *best.time);
  ASSERT_EQ(run_events(graph, machine, best.actions).time, *best.time);
}

// Compares the answer of a planner, and a bound, with the best of all plans, which the oracle found.
// `moves` says whether a plan uses the second memory.
template <class Moves>
void compare(const BestPlan& best, const PlanResult& result, Nanos bound, const Moves& moves,
             Score& score) {
  if (!best.time) {
    ++score.impossible;
    score.proven += result.termination == Termination::kInfeasible;
    ASSERT_FALSE(result.plan) << "a plan where there is none";
    return;
  }
  ASSERT_NE(result.termination, Termination::kInfeasible);
  ASSERT_LE(result.lower_bound.count(), *best.time) << "the bound is above the optimum";
  ASSERT_LE(bound.count(), *best.time) << "the bound is above the optimum";
  ++score.questions;
  if (!result.plan) {
    ++score.refused;
    return;
  }
  ASSERT_GE(result.plan->time.count(), *best.time) << "faster than every plan";
  if (result.termination == Termination::kOptimal) {
    ASSERT_EQ(result.plan->time.count(), *best.time);
  }
  const double loss = share_above(result.plan->time.count(), *best.time);
  score.optimal += loss == 0;
  score.bound_exact += bound.count() == *best.time;
  score.gap += share_above(*best.time, bound.count());
  score.sum += loss;
  score.worst = std::max(score.worst, loss);
  score.moved += moves(*result.plan);
}

inline void print(const std::string& name, const Score& score) {
  const auto asked = static_cast<double>(std::max<int64_t>(1, score.questions));
  std::cout << name << ": questions " << score.questions << ", optimal " << score.optimal
            << ", refused " << score.refused << ", mean loss " << 100 * score.sum / asked
            << " %, worst " << 100 * score.worst << " %, with the second memory " << score.moved
            << "; bound exact " << score.bound_exact << ", mean gap of the optimum "
            << 100 * score.gap / asked << " %, no plan " << score.impossible << ", of which proven "
            << score.proven << "; the oracle gave up " << score.gave_up << "\n";
}

}  // namespace reprise::testing
