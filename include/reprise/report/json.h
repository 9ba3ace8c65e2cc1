// These functions write results as JSON for machines; the commands print this JSON with --json.
// Sizes are bytes, and times are nanoseconds. The JSON is an answer, and not a file of the project:
// nothing reads it back, and keys may be added.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reprise/check/explain.h"
#include "reprise/check/verify.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/registry.h"
#include "reprise/report/energy.h"

namespace reprise {

// The JSON leaves out the plan's actions. It has the key "energy" if `energy` is given.
std::string result_json(const PlanResult& result, const EnergyReport* energy = nullptr);
std::string explanation_json(const Explanation& explanation, const EnergyReport* energy = nullptr);
std::string violations_json(const std::vector<Violation>& violations, const Plan& plan,
                            Bytes budget);
std::string planners_json(std::span<const PlannerInfo> planners);

}  // namespace reprise
