#include "plan/graph/question.h"

#include <optional>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/instant.h"
#include "plan/graph/starts/prices.h"
#include "plan/graph/starts/rungs.h"
#include "plan/graph/search/search.h"
#include "plan/graph/starts/sections.h"
#include "plan/graph/bound/split.h"
#include "plan/graph/starts/starts.h"
#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::graph {

using bound::GraphBound;
using bound::Instant;
using bound::bound_graph;
using bound::split_bound;
using common::GraphFacts;
using common::SearchControl;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;
using search::GraphSearch;
using starts::cheapest_variants;
using starts::kept_at;
using starts::kept_or_put_off;
using starts::schedule_of_sections;
using starts::schedules_at_prices;
using starts::schedules_of_segments;
using starts::schedules_with_rungs;

namespace {

// Shares of the time.
constexpr double kForBound = 0.3, kForSplit = 0.1, kForStarts = 0.4, kForRungs = 0.5,
                 kForSections = 0.5;

// Of a byte, at the instant of the bound.
double price_of(const ScheduleModel& model, const GraphFacts& facts, const GraphBound& bound,
                Bytes budget) {
  if (bound.instant < 0) return 0;
  const Run& run = model.plain()[bound.instant];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  instant.least_time(budget.count());
  return instant.price();
}

// Where it is better than what there is: else it would only lead the search elsewhere.
void consider_if_better(const ScheduleModel& model, const Schedule& schedule, Bytes budget,
                        GraphSearch& search, const SearchControl& control) {
  ScheduleLedger ledger(model);
  if (!ledger.assign(schedule)) return;
  const bool fits = ledger.peak() <= budget.count();
  if (search.best() && (!fits || ledger.time() >= search.best()->time)) return;
  search.consider_for_budget({schedule}, control);
}

void consider_starts(const ScheduleModel& model, Bytes budget, const GraphBound& bound,
                     const std::vector<Schedule>& seeds, GraphSearch& search,
                     const SearchControl& control) {
  const Graph& graph = model.graph();
  const GraphFacts facts(graph);
  const Schedule base = cheapest_variants(model, price_of(model, facts, bound, budget));
  // Most of these fit as they are; repairs of the others can take long.
  search.consider_for_budget(
      schedules_with_rungs(model, base, facts, bound, budget, control.part(kForRungs)), control);
  if (search.is_near(bound.time.count())) return;
  std::optional<Schedule> sections;
  if (bound.least_peak <= budget) {
    sections = schedule_of_sections(model, base, facts, budget, control.part(kForSections));
  }
  std::vector<Schedule> starts = seeds;
  for (const std::vector<ValueIndex>& kept : bound.kept) {
    std::vector<char> is_kept(graph.values.size(), 0);
    for (const ValueIndex value : kept) is_kept[value] = 1;
    starts.push_back(kept_at(model, base, bound.instant, is_kept));
    starts.push_back(kept_or_put_off(model, base, bound.instant, is_kept));
  }
  search.consider_for_budget(starts, control);
  if (search.is_near(bound.time.count())) return;
  search.consider_for_budget(
      schedules_at_prices(model, base, facts, bound, budget, search.price_of_excess(), control),
      control);
  if (sections) consider_if_better(model, *sections, budget, search, control);
  if (search.is_near(bound.time.count()) || (!seeds.empty() && search.best())) return;
  search.consider(schedules_of_segments(model, base), control);
}

}  // namespace

GraphFinding find_schedule(const ScheduleModel& model, Bytes budget, Bytes goal, int threads,
                           const std::vector<Schedule>& seeds, SearchControl& control,
                           double share_for_first) {
  GraphSearch search(model, goal.count(), threads, control);
  SearchControl first = control.part(kForBound);
  GraphFinding found;
  found.bound = bound_graph(model.graph(), budget, first);
  if (!search.best() || search.best()->time > found.bound.time.count()) {
    const GraphFacts facts(model.graph());
    found.bound.time = split_bound(facts, budget, found.bound, control.part(kForSplit));
  }
  const int64_t bound = found.bound.time.count();
  if (!search.best() || search.best()->time > bound) {
    consider_starts(model, goal, found.bound, seeds, search, control.part(kForStarts));
    search.fit(bound);
    search.shrink(found.bound.least_peak.count(), control.part(share_for_first));
    search.improve(bound);
  }
  found.best = search.best();
  found.smallest = search.smallest();
  found.near = found.best && (found.best->time <= bound || search.is_near(bound));
  found.memory = search.memory();
  return found;
}

std::vector<Run> runs_of(const ScheduleModel& model, const Schedule& schedule) {
  ScheduleLedger ledger(model);
  ledger.assign(schedule);
  return ledger.runs();
}

}  // namespace reprise::internal::graph
