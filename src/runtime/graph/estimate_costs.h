// Estimates what the works of a step cost from steps that do the same on other shapes.
#pragma once

#include <optional>
#include <vector>

#include "runtime/graph/costs.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::graph {

// The works of a step that were measured, and what they cost.
struct KnownCosts {
  const step::Works* works;
  const WorkCosts* costs;
};

// Returns the costs of the works, or nothing if less than two known steps have the same works on other
// shapes. Each cost is on the line through those of the two steps whose operands are the nearest in
// bytes.
std::optional<WorkCosts> estimate_costs(const step::Works& works,
                                        const std::vector<KnownCosts>& known);

}  // namespace reprise::runtime::internal::graph
