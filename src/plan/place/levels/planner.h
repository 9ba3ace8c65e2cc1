// These planners plan chains on a machine with several memories. levels.cc says what they do.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

// The planner `levels`: a value stays, moves, or is made again.
Answer levels_chain(const ChainProblem& problem);
// The same, but every stage runs forward once. Some memory must have a lane.
Answer move_or_keep(const ChainProblem& problem, const char* planner);

}  // namespace reprise::internal::levels
