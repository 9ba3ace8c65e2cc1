// The planner `levels` plans chains on a machine with several memories.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

Answer levels_chain(const ChainProblem& problem);  // levels.cc

}  // namespace reprise::internal::levels
