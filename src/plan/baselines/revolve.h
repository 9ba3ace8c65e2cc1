// This header has the binomial schedules by themselves; see revolve.cc.
#pragma once

#include <cstddef>
#include <vector>

#include "reprise/model/plan.h"

namespace reprise::internal::baselines {

// Returns the number of stages after which to store a state, for `stages` >= 2 equal stages and
// `slots` >= 2 slots of which the input takes one.
size_t revolve_split(size_t stages, size_t slots);

// A slot holds the input of a stage, or all that the backward of the stage needs, with its output.
enum class Held { kInputs, kHistories };

// Returns the runs on a lowered chain of `stages` stages, with the first option of every stage.
std::vector<Run> revolve_runs(size_t stages, size_t slots, Held held = Held::kInputs);

}  // namespace reprise::internal::baselines
