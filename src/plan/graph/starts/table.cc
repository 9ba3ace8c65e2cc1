#include "plan/graph/starts/table.h"

#include <optional>
#include <utility>

#include "plan/graph/starts/prices.h"
#include "plan/graph/starts/rungs.h"
#include "plan/graph/starts/sections.h"
#include "plan/graph/starts/starts.h"

namespace reprise::internal::starts {

using common::SearchControl;
using schedule::Schedule;

namespace {

std::vector<Schedule> find_rungs(const StartQuestion& q, const SearchControl& control) {
  return schedules_with_rungs(q.model, q.base, q.facts, q.bound, q.budget,
                              control.part(q.params.share_for_rungs), q.params);
}

std::vector<Schedule> find_sections(const StartQuestion& q, const SearchControl& control) {
  std::optional<Schedule> schedule = schedule_of_sections(
      q.model, q.base, q.facts, q.budget, control.part(q.params.share_for_sections), q.params);
  return schedule ? std::vector{*std::move(schedule)} : std::vector<Schedule>{};
}

std::vector<Schedule> find_seeds(const StartQuestion& q, const SearchControl&) { return q.seeds; }

// The values that the relaxed problem keeps at the instant of the bound.
std::vector<Schedule> find_cuts(const StartQuestion& q, const SearchControl&) {
  std::vector<Schedule> schedules;
  for (const std::vector<ValueIndex>& kept : q.bound.kept) {
    std::vector<char> is_kept(q.model.graph().values.size(), 0);
    for (const ValueIndex value : kept) is_kept[value] = 1;
    schedules.push_back(kept_at(q.model, q.base, q.bound.instant, is_kept));
    if (!q.params.use.put_off) continue;
    schedules.push_back(kept_or_put_off(q.model, q.base, q.bound.instant, is_kept));
  }
  return schedules;
}

std::vector<Schedule> find_prices(const StartQuestion& q, const SearchControl& control) {
  return schedules_at_prices(q.model, q.base, q.facts, q.bound, q.budget, q.price_of_excess,
                             control, q.params);
}

std::vector<Schedule> find_segments(const StartQuestion& q, const SearchControl&) {
  return schedules_of_segments(q.model, q.base);
}

bool always(const StartQuestion&) { return true; }

bool when_a_plan_may_fit(const StartQuestion& q) { return q.bound.least_peak <= q.budget; }

bool when_seeds_gave_no_plan(const StartQuestion& q) { return q.seeds.empty() || !q.has_plan; }

}  // namespace

// Most rungs fit as they are, so they come first: repairs of the others can take long. Sections are
// found before these repairs, and taken after them. They would only lead the search elsewhere if
// they were worse.
const Start kStarts[6] = {
    {"rungs", &StartSwitches::rungs, find_rungs, always, Taking::kRepair},
    {"sections", &StartSwitches::sections, find_sections, when_a_plan_may_fit, Taking::kLast},
    {"seeds", &StartSwitches::seeds, find_seeds, always, Taking::kWithNext},
    {"cuts", &StartSwitches::cuts, find_cuts, always, Taking::kRepair},
    {"prices", &StartSwitches::prices, find_prices, always, Taking::kRepair},
    {"segments", &StartSwitches::segments, find_segments, when_seeds_gave_no_plan,
     Taking::kAnyBudget},
};

}  // namespace reprise::internal::starts
