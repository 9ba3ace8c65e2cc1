#include "reprise/check/energy.h"

#include "reprise/check/simulate.h"

namespace reprise {

EnergyUse energy_of(const Graph& graph, const std::vector<Action>& actions, const Power& power,
                    const Machine& machine) {
  validate(power);
  const std::vector<std::vector<int64_t>> dynamic = dynamic_power(graph, power);
  EnergyUse use;
  use.time = simulate(graph, actions, machine).time;
  use.background = Picojoules(use.time.count()) * power.static_mw;
  for (const BoundAction& action : bind(graph, actions, machine)) {
    const auto target = static_cast<size_t>(action.target);
    const auto variant = static_cast<size_t>(action.variant);
    if (action.kind == ActionKind::kRun) {
      const Nanos time = graph.ops[target].variants[variant].time;
      use.runs += Picojoules(time.count()) * dynamic[target][variant];
    } else if (action.kind == ActionKind::kCopy) {
      use.copies += Picojoules(graph.values[target].bytes.count()) * power.copy_pj_per_byte;
    }
  }
  use.total();  // It fits.
  return use;
}

EnergyUse baseline_energy(const Graph& graph, const Power& power) {
  return energy_of(graph, with_frees(graph, plain_runs(graph)), power);
}

}  // namespace reprise
