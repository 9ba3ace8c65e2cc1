// These are the steps that a group of OliVe may have (olive_codec.cc).
#pragma once

#include <algorithm>
#include <cmath>

#include "runtime/codec/olive_numbers.h"

namespace reprise::runtime::internal::codec {

constexpr int kOliveCandidates = 6;
// A group without a larger element becomes zero: a step of it could not be inverted.
constexpr float kLeastOfGroup = 1e-34f;

// A candidate with which more elements of the group are outliers is not tried.
inline float most_outliers(int64_t group) { return static_cast<float>(group / 16); }

// Returns the number of steps at which the largest element of the group lies with candidate k.
inline float olive_steps(const OliveNumbers& numbers, int k) {
  const float steps =
      static_cast<float>(numbers.largest_normal) * std::exp2(0.75f * static_cast<float>(k));
  return std::min(steps, static_cast<float>(numbers.last_outlier()));
}

}  // namespace reprise::runtime::internal::codec
