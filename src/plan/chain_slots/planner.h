// The planner `chain_slots` finds persistent schedules with memory counted in slots. registry.cc
// has its row.
#pragma once

#include <vector>

#include "reprise/plan/planner.h"

namespace reprise::internal::chain_slots {

Answer slots_chain(const ChainProblem& problem);  // chain_slots.cc

}  // namespace reprise::internal::chain_slots
