// Searches a plan of a step whose sums over the ranks hide behind its operations.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "reprise/model/graph.h"
#include "runtime/graph/step_program.h"
#include "runtime/graph/step_search.h"

namespace reprise::runtime::internal::graph {

// Does what search_step() does, for the time on the link of the program. A planner adds up the
// times of all runs. But what runs again while the step would wait for the link costs nothing, and
// what runs again before the sum that the others wait for costs most. So the search is asked again
// with shorter times for re-runs behind that sum, and the plan is taken that the simulator finds
// fastest with its sums. The idea is that of Chen et al., "Lynx", 2024.
StepPlan search_on_link(const StepProgram& program, const Graph& graph,
                        const StepPlanOptions& options, Bytes slack,
                        std::optional<c10::Device> arena);

}  // namespace reprise::runtime::internal::graph
