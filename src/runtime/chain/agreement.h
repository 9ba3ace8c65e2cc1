// Lets the ranks of a process group plan the same stages together, and take the same steps. All
// ranks call these functions at the same places.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "reprise/model/chain.h"
#include "reprise/model/units.h"
#include "reprise/plan/plan.h"
#include "runtime/chain/problem.h"
#include "runtime/distributed/ranks.h"

namespace reprise::runtime::internal::chain {

// Returns whether `mine` is true on some rank. Without ranks it returns `mine`.
bool on_any_rank(distributed::Ranks* ranks, bool mine, c10::Device device);

// Makes the bytes and times of the chain the largest ones of all ranks. Throws InputError on all
// ranks if some have other stages or options than rank 0; the message names them.
void agree_on_chain(distributed::Ranks& ranks, Chain& chain, c10::Device device);

// Returns whether all ranks have measured inputs like theirs. Throws InputError on all ranks if
// only some have.
bool all_measured(distributed::Ranks& ranks, bool mine, c10::Device device);
// Returns the largest of the numbers of all ranks.
int64_t largest(distributed::Ranks& ranks, int64_t mine, c10::Device device,
                const std::string& what);

// Lets rank 0 plan, and every rank verify the plan. Throws what the planner throws, and InputError
// if a rank refuses the plan; on all ranks.
PlanResult plan_together(distributed::Ranks& ranks, const Problem& problem,
                         const PlanOptions& options);

}  // namespace reprise::runtime::internal::chain
