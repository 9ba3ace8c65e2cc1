// This planner keeps every stage, and only moves values: the question of O. Beaumont,
// L. Eyraud-Dubois, A. Shilova, "Optimal GPU-CPU offloading strategies for deep neural network
// training", Euro-Par 2020. There the values that move are chosen by a greedy rule or by dynamic
// programming in a model where a value leaves when the link is free. Here the search of `levels`
// chooses them, with the exact plan as its judge, so that this row is no weaker than the paper's rule
// of moving the first values: it begins there.
//
// It is here to be compared with: `levels` may also make values again.
//
// Complexity: that of the flows (levels.cc). The bound is that of `levels`, over all plans, so that it
// does not say how good this row is in its own class.
//
// Tests: those of every planner; oracle/levels_test.cc and property/levels_test.cc (never faster than
// `levels` by more than the search's luck, never a run twice).
#include "plan/baselines/baselines.h"
#include "plan/literature/planner.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/planner.h"

namespace reprise::internal::literature {

Answer offload_only_chain(const ChainProblem& problem) {
  if (place::lanes_of(problem.options.machine).empty()) return baselines::keep_all_chain(problem);
  return levels::move_or_keep(problem, "offload_only");
}

}  // namespace reprise::internal::literature
