// These are schedules that cut a chain into segments: periodic.cc and min_peak.cc choose the cuts.
#pragma once

#include <cstddef>
#include <vector>

#include "reprise/model/plan.h"

namespace reprise::internal::baselines {

using Cuts = std::vector<size_t>;  // the first stage of each segment, ascending; the first is 0

// Returns the runs on a lowered chain of `stages` stages. All segments but the last run forward
// fast, and only their inputs stay. The last segment runs forward with its first options, and then
// backward. Then every other segment, from the back, runs forward again with its first options, and
// backward.
std::vector<Run> segment_runs(size_t stages, const Cuts& cuts);

}  // namespace reprise::internal::baselines
