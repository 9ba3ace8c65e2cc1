// Plain training: every op once, in order, with its first variant; what every other planner is
// compared with. O(ops). It is optimal over all plans exactly when no cheaper variant exists: the
// bound is the sum of the cheapest ones.
//
// Tests: property/planner_property_test.cc (every planner's, and KeepAllIsTheBaseline).
#include "plan/common/candidates.h"
#include "plan/baselines/baselines.h"

namespace reprise::internal::baselines {

using common::Candidates;
using common::least_time;

Answer keep_all_chain(const ChainProblem& problem) {
  Candidates candidates(problem.graph, problem.budget);
  candidates.consider(plain_runs(problem.graph));
  return candidates.answer(least_time(problem.chain), true);
}

Answer keep_all_graph(const GraphProblem& problem) {
  Candidates candidates(problem.graph, problem.budget);
  candidates.consider(plain_runs(problem.graph));
  return candidates.answer(least_time(problem.graph), true);
}

Curve keep_all_frontier(const ChainProblem& problem) {
  Candidates candidates(problem.graph, problem.budget);
  candidates.consider(plain_runs(problem.graph));
  return {candidates.curve(least_time(problem.chain))};
}

}  // namespace reprise::internal::baselines
