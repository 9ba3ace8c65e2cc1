// These are conversions of the 128-bit amounts of cuts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "plan/graph/bound/max_flow.h"

namespace reprise::internal::bound {

// Returns a / b, rounded up. b is positive.
inline MaxFlow::Amount rounded_up(MaxFlow::Amount a, MaxFlow::Amount b) {
  return a <= 0 ? -(-a / b) : (a + b - 1) / b;
}

// Returns the amount as far as 64 bits go.
inline int64_t narrow(MaxFlow::Amount amount) {
  constexpr MaxFlow::Amount kLargest = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(amount, kLargest));
}

}  // namespace reprise::internal::bound
