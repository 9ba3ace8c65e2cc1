// The middle of samples of time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "reprise/model/units.h"

namespace reprise::runtime::internal::device {

// The upper one of two; 0 of none.
inline Nanos median(std::vector<Nanos> times) {
  if (times.empty()) return {};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace reprise::runtime::internal::device
