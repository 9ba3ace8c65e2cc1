// Lists cuts that are worth a simulation.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/pipeline/part_costs.h"

namespace reprise::internal::pipeline {

struct CutChoice {
  std::vector<size_t> cuts;  // as Layout::cuts
  Nanos least;               // PartCosts::least_time()
};

// Returns cuts, the ones with the smallest least time first: those of the user; or all that fit, where
// there are at most 20,000 of them; or else, for each of some caps on the slowest part, those with the
// least sum of times under it, as PipeDream's program has them (Narayanan et al., SOSP 2019).
// O(parts * stages^2) for each cap.
std::vector<CutChoice> list_cuts(PartCosts& costs, const common::SearchControl& control);

}  // namespace reprise::internal::pipeline
