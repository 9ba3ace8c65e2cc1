// The planner `graph_levels` plans graphs on a machine with several memories.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::graph_levels {

Answer graph_levels(const GraphProblem& problem);  // graph_levels.cc

}  // namespace reprise::internal::graph_levels
