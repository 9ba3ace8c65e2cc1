// The binomial schedules, by themselves; see revolve.cc.
#pragma once

#include <cstddef>
#include <vector>

#include "reprise/model/plan.h"

namespace reprise::internal::baselines {

// After how many of `stages` >= 2 equal stages to store a state, with `slots` >= 2 slots of which
// the input takes one.
size_t revolve_split(size_t stages, size_t slots);

// The runs on a lowered chain of so many stages, with the first option of everything.
std::vector<Run> revolve_runs(size_t stages, size_t slots);

}  // namespace reprise::internal::baselines
