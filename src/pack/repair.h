// repair() is a local search that makes a packing lower.
#pragma once

#include <cstdint>

#include "pack/effort.h"
#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

// Takes out some items around an item that is too high, and places them anew. Ends at `goal`, after
// `patience` trials in a row that did not help, or when the effort is spent. Never makes `best`
// worse.
void repair(const Part& part, int64_t goal, int64_t patience, Effort& effort, Solution& best);

}  // namespace reprise::internal::packing
