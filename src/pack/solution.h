// A Solution is an arrangement of one part.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace reprise::internal::packing {

struct Solution {
  std::vector<int64_t> offsets;  // by item, in units above the part's base
  int64_t height = std::numeric_limits<int64_t>::max();
  const char* method = "";
};

}  // namespace reprise::internal::packing
