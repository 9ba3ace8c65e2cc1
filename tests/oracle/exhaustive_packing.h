// Finds the least height of any packing, by trying every offset of every block. It is for few and
// small blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/pack/pack.h"

namespace reprise::testing {

// The alignment is 1. The search shares nothing with the library: it has no sections and no order
// of placement. It tries heights upwards, from the most bytes that are live at one time.
int64_t least_height_of_any_packing(std::vector<Block> blocks);

}  // namespace reprise::testing
