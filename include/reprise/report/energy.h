// Texts say what a plan's energy is made of. The JSON of results and explanations says it, too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/check/energy.h"
#include "reprise/plan/energy.h"
#include "reprise/report/text.h"

namespace reprise {

struct EnergyReport {
  EnergyUse use;                               // of the plan
  EnergyUse plain;                             // of plain training
  std::optional<EnergyUse> fastest = {};       // of the fastest plan that was found
  std::optional<Picojoules> lower_bound = {};  // of the plans of `bound_class`
  std::string bound_class = {};
};

// Makes the report of a plan that was searched for its energy. There must be a plan.
EnergyReport energy_report(const EnergyPlan& plan);

std::string energy_text(const EnergyReport& energy, const TextOptions& options = {});
// These functions show the plans of energy_curve() in a table, and as JSON.
std::string energy_curve_text(const std::vector<EnergyPoint>& points, const EnergyUse& plain,
                              const TextOptions& options = {});
std::string energy_curve_json(const std::vector<EnergyPoint>& points, const EnergyUse& plain);

}  // namespace reprise
