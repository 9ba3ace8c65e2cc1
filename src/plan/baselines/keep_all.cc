// Plain training runs every op once, in order, with its first variant. All other planners are
// compared with it. O(ops). It is optimal over all plans exactly if no cheaper variant exists: the
// bound is the sum of the cheapest variants.
//
// Tests: property/planner_property_test.cc (the tests of every planner, and KeepAllIsTheBaseline).
#include "plan/baselines/baselines.h"
#include "plan/common/candidates.h"

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
