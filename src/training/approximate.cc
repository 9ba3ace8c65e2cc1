#include "training/approximate.h"

#include <algorithm>
#include <limits>

namespace reprise::training {

namespace {

void add(ApproximateUse& use, const runtime::ApproximateValue& value) {
  // A value that was not compared breaks the promise.
  const double error = value.error.value_or(std::numeric_limits<double>::infinity());
  const double whole = std::max(value.largest, std::numeric_limits<double>::min());
  const bool is_first = use.values == 0;
  ++use.values;
  use.plain += value.plain;
  use.kept += value.kept;
  // The comparison is false for NaN, too.
  const bool is_within = error <= value.bound;
  const bool was_within = use.within_bounds;
  use.within_bounds &= is_within;
  if (!was_within ||
      (!is_first && is_within && error * use.bound * whole < use.error * whole * value.bound)) {
    return;
  }
  use.error = error / whole;
  use.bound = value.bound / whole;
}

}  // namespace

std::vector<ApproximateUse> uses_of(const std::vector<runtime::ApproximateValue>& values) {
  std::vector<ApproximateUse> all;
  for (const runtime::ApproximateValue& value : values) {
    auto use = std::ranges::find(all, value.alternative, &ApproximateUse::alternative);
    if (use == all.end()) {
      all.push_back({.alternative = value.alternative});
      use = all.end() - 1;
    }
    add(*use, value);
  }
  return all;
}

}  // namespace reprise::training
