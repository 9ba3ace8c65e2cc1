#include "reprise/report/compared.h"

#include <utility>
#include <variant>

#include "reprise/model/graph.h"
#include "reprise/plan/plan.h"

namespace reprise {

std::vector<ComparedCurve> compared_curves(const Problem& problem, const PlanOptions& options) {
  const Chain* chain = problem.chain();
  PlanOptions asked = options;
  asked.planner.clear();
  asked.schedule_class.clear();
  asked.time_limit = Nanos(options.time_limit.count() / (chain == nullptr ? 1 : 2));
  std::vector<ComparedCurve> curves;
  const auto add = [&](const char* name, Frontier curve) {
    if (!curve.points.empty()) curves.push_back({name, std::move(curve.points)});
  };
  PlanOptions alone = asked;
  alone.machine = {};
  if (!has_homes(problem.graph())) {
    add("recomputing alone",
        std::visit([&](const auto& model) { return frontier(model, alone); }, problem.model));
  }
  if (chain != nullptr && !asked.machine.channels.empty()) {
    asked.planner = "offload_only";
    add("moving alone", frontier(*chain, asked));
  }
  return curves;
}

}  // namespace reprise
