// These planners of chains may move values to other memories. registry.cc has their rows.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

Answer levels_chain(const ChainProblem& problem);             // levels.cc: keep, make again or move
Answer offload_only_chain(const ChainProblem& problem);       // offload_only.cc: keep or move
Answer double_checkpoint_chain(const ChainProblem& problem);  // two levels of checkpoints
Answer pofo_chain(const ChainProblem& problem);               // pofo.cc: slots
Answer block4_chain(const ChainProblem& problem);             // block4.cc: groups of stages
Answer save_on_cpu_chain(const ChainProblem& problem);        // save_on_cpu.cc: move all

}  // namespace reprise::internal::levels
