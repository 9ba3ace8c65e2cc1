// clang-format off
// This planner decides, for each value of a chain, whether it stays on the device, is made again, or
// moves to another memory and comes back in time.
//
// The question is that of O. Beaumont, L. Eyraud-Dubois, A. Shilova, "Efficient combination of
// rematerialization and offloading for training DNNs", NeurIPS 2021 (POFO), with the copies'
// semantics of Reprise (docs/planners/levels.md). POFO counts memory in slots and bandwidth in a
// fluid model. Here nothing is rounded, and the judge of every step is the exact plan:
//
//   choices.h   what happens to each stage and boundary: kept with an option or swept, a lane or none
//   segments.h  the fastest backward of a swept stretch in m bytes (the recurrence of plan/chain)
//   flow.h      runs and lanes -> the exact plan: what leaves where, what comes back when
//   improve.h   local search over the choices with the flow as its judge (place/anneal.h)
//   search.h    the starts of the search, and its answer
//   bound.h     a time that no plan with copies beats, from the instant of the loss
//
// The search begins with three plans: everything is kept and may move; the best plan of the planner
// `chain`, which moves nothing; and the same where everything that it keeps may move. So the answer
// is never slower than that of `chain` in kChainShare of the time, and never slower than moving
// alone in the order of the flow. Where none of the three fits, it begins with plans in which a part
// of the stages runs again and the others may move.
//
// Complexity: a flow takes O(values of all runs + gaps * log gaps + the runs between copies back
// and their uses); there are up to kMostEvaluations of them.
//
// Assumes: every forward may run again. Does not handle: memories that no channel joins with the
// device directly; copies of values that are made again behind the loss. Not proven: the search has
// no guarantee but the bound.
//
// Tests:
//   oracle/levels_test.cc: against every plan with copies of small chains; bounds below the optimum
//   oracle/accounts_test.cc: time and bytes of plans with copies, for any durations
//   property/levels_test.cc: never slower than recomputing alone or moving alone; capacities
// clang-format on
#include "plan/chain/planner.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/planner.h"
#include "plan/place/levels/search.h"

namespace reprise::internal::levels {

Answer levels_chain(const ChainProblem& problem) {
  if (!place::lanes_of(problem.options.machine).empty()) return search_fates(problem, Fates::kAll);
  // Nothing can move. The bound is then that of the planner `chain`, for its class.
  ChainProblem alone = problem;
  alone.options.machine = {};
  Answer answer = chain::exact_chain(alone);
  if (answer.schedule_class.empty()) answer.schedule_class = "persistent";
  return answer;
}

}  // namespace reprise::internal::levels
