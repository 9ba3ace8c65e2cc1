#include "plan/pipeline/try_cuts.h"

#include <cstdint>
#include <optional>

#include "plan/pipeline/messages.h"

namespace reprise::internal::pipeline {
namespace {

constexpr int kMostRepairs = 8;
constexpr Slack kTriedSlacks[] = {{1, 1}, {2, 2}, {1, 2}, {0, 1}, {0, 2}};

// Returns the plans of all parts, or fewer if a part has none.
std::vector<PartPlan> plans_of(PartCosts& costs, const std::vector<size_t>& cuts,
                               const std::vector<int64_t>& reserved) {
  std::vector<PartPlan> plans;
  for (size_t q = 0; q < costs.parts(); ++q) {
    const std::optional<Way> way = costs.way(q, cuts[q], cuts[q + 1], reserved[q]);
    if (!way) break;
    plans.push_back(costs.plans().plan(cuts[q], cuts[q + 1], *way));
  }
  return plans;
}

}  // namespace

void try_cuts(PartCosts& costs, const std::vector<size_t>& cuts, BestPlan& best) {
  const Layout layout{cuts, costs.devices()};
  for (const Slack& slack : kTriedSlacks) {
    std::vector<int64_t> reserved(costs.parts(), 0);
    for (int repair = 0; repair < kMostRepairs; ++repair) {
      const std::vector<PartPlan> plans = plans_of(costs, cuts, reserved);
      if (plans.size() < costs.parts()) break;
      if (best.tried() && best.late()) return;
      const Orders order = order_of(costs.rule(), costs.pipeline(), layout, plans);
      const auto over = best.consider(
          draft_plan(costs.pipeline(), layout, plans, with_messages(layout, order, slack)));
      if (!over || over->empty()) break;
      for (const size_t device : *over) {
        const Bytes budget = costs.problem().budgets[device];
        reserved[device] += (best.last_peaks()[device] - budget).count();
      }
    }
  }
}

}  // namespace reprise::internal::pipeline
