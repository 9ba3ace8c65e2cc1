// search_fates() looks for the fastest plan of a chain over choices, with the exact flow of each as its
// judge. The planners of this room differ in what may happen to a value.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

enum class Fates {
  kAll,         // A value stays, moves, or is made again.
  kKeepOrMove,  // Every stage runs forward once.
};

// levels.cc and offload_only.cc say what the search does and promises.
Answer search_fates(const ChainProblem& problem, Fates fates);

}  // namespace reprise::internal::levels
