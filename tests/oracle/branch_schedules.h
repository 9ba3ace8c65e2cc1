// Goes through every schedule of the class "persistent-branches" of a small join. The simulator
// computes the cost of each.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "oracle/persistent.h"
#include "reprise/model/join.h"

namespace reprise::testing {

// On the way to the loss, the branches run in their order. Every stage is kept with one of its
// options, or swept, in any variant that gives nothing back. The input of a swept stage may be
// stored, and it is stored if the stage before was kept, or if there is none. Behind the loss, one
// piece after the other is reversed, from any branch: the top stage, if it was kept, or all stages
// from the last stored activation on, by a persistent schedule (oracle/persistent.h) of their own.
//
// Returns the pairs of peak and time that no other schedule beats, peak ascending. Returns nothing
// if there are more than `limit` schedules.
std::optional<std::vector<PeakAndTime>> branch_frontier(const Join& join, size_t limit);

}  // namespace reprise::testing
