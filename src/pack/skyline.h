// Items laid on the lowest place of the skyline of those that are placed.
#pragma once

#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

// Which of the items that fit on the lowest line is taken.
enum class SkylineRule { kLongest, kLargest, kLargestArea };

// At worst O(n^2), n the items.
Solution skyline(const Part& part, SkylineRule rule);

}  // namespace reprise::internal::packing
