// energy_of() computes the energy of a plan on a device whose power is given.
#pragma once

#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "reprise/model/power.h"
#include "reprise/model/units.h"

namespace reprise {

struct EnergyUse {
  Nanos time;             // of the plan, with the time that it waits for copies
  Picojoules background;  // static power x time
  Picojoules runs;        // dynamic power x time, over all runs
  Picojoules copies;      // over the bytes of all copies
  Picojoules total() const { return background + runs + copies; }

  bool operator==(const EnergyUse&) const = default;
};

// Throws InputError if the plan cannot be simulated, if the power names an op or variant that the
// graph does not have, and if an energy does not fit 64 bits (nine megajoules).
EnergyUse energy_of(const Graph& graph, const std::vector<Action>& actions, const Power& power,
                    const Machine& machine = {});

// Returns the energy of plain training.
EnergyUse baseline_energy(const Graph& graph, const Power& power);

}  // namespace reprise
