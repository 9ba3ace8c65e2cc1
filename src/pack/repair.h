// Local search that makes a packing lower.
#pragma once

#include <cstdint>

#include "pack/effort.h"
#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

// Takes out some items around one that is too high and places them anew. Ends at `goal`, when
// `patience` trials in a row did not help, or when the effort is spent. Never makes `best` worse.
void repair(const Part& part, int64_t goal, int64_t patience, Effort& effort, Solution& best);

}  // namespace reprise::internal::packing
