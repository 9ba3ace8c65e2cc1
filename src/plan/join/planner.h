// The planner of joins; join.cc describes it.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::join {

Answer plan_branches(const JoinProblem& problem);

}  // namespace reprise::internal::join
