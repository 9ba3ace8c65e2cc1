// Checks what a plan claims about itself, for verify().
#pragma once

#include "check/accounting.h"
#include "check/turns.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// `peak` and `time` are what the plan needs.
void check_claims(const Graph& graph, const Plan& plan, Wide peak, Wide time,
                  const ReportViolation& report);

// Returns the number, or the largest that 64 bits hold. Messages use it; comparisons do not.
int64_t clamp(Wide number);

}  // namespace reprise
