// Computes the median of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "reprise/model/units.h"

namespace reprise::runtime::internal::device {

// Returns the upper median of an even number of times, and 0 if there are none.
inline Nanos median(std::vector<Nanos> times) {
  if (times.empty()) return {};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace reprise::runtime::internal::device
