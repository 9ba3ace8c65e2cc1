// These planners of the literature are there to be compared with. registry.cc has their rows.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::literature {

Answer block4_chain(const ChainProblem& problem);             // groups of stages
Answer double_checkpoint_chain(const ChainProblem& problem);  // two levels of checkpoints
Answer offload_only_chain(const ChainProblem& problem);       // keep or move
Answer pofo_chain(const ChainProblem& problem);               // slots
Answer save_on_cpu_chain(const ChainProblem& problem);        // move all

}  // namespace reprise::internal::literature
