// Sums up what a step did with the values that it keeps approximately.
#pragma once

#include <vector>

#include "reprise/runtime/approximate.h"
#include "training/train.h"

namespace reprise::training {

// Returns an entry for each alternative, in the order of their first values. The values are those of a
// run that compared them.
std::vector<ApproximateUse> uses_of(const std::vector<runtime::ApproximateValue>& values);

}  // namespace reprise::training
