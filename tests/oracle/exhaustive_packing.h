// The least height of any packing, by trying every offset of every block. Small numbers only.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/pack/pack.h"

namespace reprise::testing {

// Alignment 1. Shares nothing with the library: no sections, no order of placement; heights are tried from
// the most bytes that are live at one time upwards.
int64_t least_height_of_any_packing(std::vector<Block> blocks);

}  // namespace reprise::testing
