// plan_for_energy() takes a problem, a power and a budget, and returns the plan that takes the
// least energy, with a statement of how good it is. energy_curve() trades energy for time within
// one budget.
//
// Without copies a plan's energy is a sum over its runs, of time x (static power + dynamic power).
// So the planners of time search plans of least energy as well: with energies in the place of
// times. If all ops draw the same power, energy is proportional to time, and the fastest plan takes
// the least.
#pragma once

#include <string>
#include <vector>

#include "reprise/check/energy.h"
#include "reprise/model/power.h"
#include "reprise/plan/plan.h"

namespace reprise {

struct EnergyPlan {
  // The claims, the bound and the termination of this plan are about time, as everywhere.
  PlanResult result;
  // The fields below are filled in if there is a plan.
  EnergyUse use;
  EnergyUse plain;    // of plain training
  EnergyUse fastest;  // of the fastest plan that was found; its energy is never below that of `use`
  // No plan of `bound_class` within the budget takes less. The plan is the best of this class if
  // its energy is equal.
  Picojoules lower_bound;
  std::string bound_class;

  bool optimal() const { return use.total() == lower_bound; }
};

// Two searches share the time limit: of the fastest plan and of the one with the least energy; for
// chains without copies both are exact. On a machine with channels, candidates are the fastest
// plan, those for slower channels, and the plan of least energy without copies. So the plan is not
// the best one there, but its energy is never above that of the fastest plan, and the bound holds.
//
// Throws what plan() throws, and InputError for a power that does not fit the problem or whose
// energies do not fit 64 bits. A join is planned as the graph lower(join).
EnergyPlan plan_for_energy(const Chain& chain, const Power& power, const PlanOptions& options = {});
EnergyPlan plan_for_energy(const Graph& graph, const Power& power, const PlanOptions& options = {});
EnergyPlan plan_for_energy(const Join& join, const Power& power, const PlanOptions& options = {});

struct EnergyPoint {
  EnergyUse use;  // has the time, too
  Plan plan;

  bool operator==(const EnergyPoint&) const = default;
};

// Returns plans within the budget from the fastest to the one that takes the least energy. Times
// ascend and energies descend strictly. The search takes two neighbours; the pair whose times are
// furthest apart comes first. It weighs time and energy so that both plans cost the same, and looks
// for a plan with a smaller sum. It ends when no pair gives a new plan, at `most` points, or after
// 2 * `most` searches. With copies only the candidates of plan_for_energy() are compared. The list
// is empty if no plan fits or was found in time.
std::vector<EnergyPoint> energy_curve(const Chain& chain, const Power& power,
                                      const PlanOptions& options = {}, size_t most = 9);
std::vector<EnergyPoint> energy_curve(const Graph& graph, const Power& power,
                                      const PlanOptions& options = {}, size_t most = 9);
std::vector<EnergyPoint> energy_curve(const Join& join, const Power& power,
                                      const PlanOptions& options = {}, size_t most = 9);

}  // namespace reprise
