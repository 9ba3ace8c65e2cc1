// Goes through every floating schedule of a small chain. The simulator computes the cost of each.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "oracle/persistent.h"
#include "reprise/model/chain.h"

namespace reprise::testing {

// A floating schedule is a series of forward passes, as a persistent one is (persistent.h). But a
// pass may give up the activation that it starts from, unless this is the input of the chain or
// belongs to a kept stage before it. The stages behind that activation that are not reversed yet
// are then reached from those that the pass stores, or from an earlier one. After a pass, every
// backward that can run does, and the next pass starts at the last activation that is still stored.
//
// Returns the pairs of peak and time that no other schedule beats, peak ascending. Returns nothing
// if there are more than `limit` schedules.
std::optional<std::vector<PeakAndTime>> floating_frontier(const Chain& chain, size_t limit);

}  // namespace reprise::testing
