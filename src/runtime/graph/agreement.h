// Lets the ranks of a process group agree on a captured step before it runs: on the problem, its
// numbers, and the plan. All ranks call these functions together.
#pragma once

#include <functional>
#include <string>

#include "reprise/runtime/capture.h"
#include "runtime/distributed/ranks.h"
#include "runtime/graph/step_program.h"
#include "runtime/graph/step_search.h"

namespace reprise::runtime::internal::graph {

// Compares the steps that the ranks have captured, without their numbers. Throws InputError on all
// ranks if some have captured another step than rank 0; the message names them.
void agree_on_step(distributed::Ranks& ranks, const StepProgram& program,
                   const CaptureOptions& options);

// Makes bytes and times the largest ones of all ranks, and gives parameters and buffers the bits of
// rank 0.
void agree_on_numbers(distributed::Ranks& ranks, StepProgram& program,
                      const CaptureOptions& options);

// Throws InputError on all ranks unless they have the same inputs and the same random state. Returns
// whether one of the ranks `needs` a new plan.
bool agree_on_run(distributed::Ranks& ranks, const Tensors& inputs, bool needs);
// Throws InputError on all ranks unless they were given the same plan.
void agree_on_actions(distributed::Ranks& ranks, const Plan& plan);

using PlanSearch = std::function<StepPlan(const Graph& graph, const StepPlanOptions& options)>;

// Lets rank 0 search a plan for the smallest budget of all ranks and the largest `graph.fixed`, which
// is set in all of them, and lets every rank verify the plan. Throws what the search throws, and
// InputError if a rank refuses the plan; on all ranks.
StepPlan plan_together(distributed::Ranks& ranks, Graph& graph, const StepPlanOptions& options,
                       const PlanSearch& search);

}  // namespace reprise::runtime::internal::graph
