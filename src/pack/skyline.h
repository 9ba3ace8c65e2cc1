// skyline() lays items on the lowest place of the skyline of the placed items.
#pragma once

#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

// A SkylineRule says which of the items that fit on the lowest line is taken.
enum class SkylineRule { kLongest, kLargest, kLargestArea };

// O(n^2) at worst, for n items.
Solution skyline(const Part& part, SkylineRule rule);

}  // namespace reprise::internal::packing
