#include "plan/graph/question.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/instant.h"
#include "plan/graph/bound/split.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/search/search.h"
#include "plan/graph/starts/starts.h"
#include "plan/graph/starts/table.h"

namespace reprise::internal::graph {

using bound::bound_graph;
using bound::GraphBound;
using bound::Instant;
using bound::split_bound;
using common::GraphFacts;
using common::SearchControl;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;
using search::GraphSearch;
using starts::cheapest_variants;
using starts::kStarts;
using starts::schedules_of_segments;
using starts::Start;
using starts::StartParams;
using starts::StartQuestion;
using starts::Taking;

namespace {

// Returns the price of a byte at the instant of the bound, in time per byte.
double price_of(const ScheduleModel& model, const GraphFacts& facts, const GraphBound& bound,
                Bytes budget) {
  if (bound.instant < 0) return 0;
  const Run& run = model.plain()[bound.instant];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  instant.least_time(budget.count());
  return instant.price();
}

void append(std::vector<Schedule>& all, std::vector<Schedule> more) {
  std::ranges::move(more, std::back_inserter(all));
}

// Takes each schedule that fits and is faster than the best, or any while there is no plan.
void consider_if_better(const ScheduleModel& model, const std::vector<Schedule>& schedules,
                        Bytes budget, GraphSearch& search, const SearchControl& control) {
  for (const Schedule& schedule : schedules) {
    ScheduleLedger ledger(model);
    if (!ledger.assign(schedule)) continue;
    const bool fits = ledger.peak() <= budget.count();
    if (search.best() && (!fits || ledger.time() >= search.best()->time)) continue;
    search.consider_for_budget({schedule}, control);
  }
}

// Walks the rows of kStarts.
void consider_starts(StartQuestion question, GraphSearch& search, SearchControl control) {
  std::vector<Schedule> waiting, last;
  for (const Start& start : kStarts) {
    if (start.taking == Taking::kAnyBudget) {
      consider_if_better(question.model, std::exchange(last, {}), question.budget, search, control);
    }
    control.report(-1);  // An observer may end the search.
    const bool is_first = &start == std::begin(kStarts);
    if (!is_first && search.is_near(question.bound.time.count())) return;
    question.has_plan = search.best().has_value();
    const bool is_used = question.params.use.*start.use && start.when(question);
    std::vector<Schedule> found;
    if (is_used) found = start.find(question, control);
    switch (start.taking) {
      case Taking::kWithNext:
        append(waiting, std::move(found));
        break;
      case Taking::kRepair:
        append(waiting, std::move(found));
        if (is_used || !waiting.empty()) {
          search.consider_for_budget(std::exchange(waiting, {}), control);
        }
        break;
      case Taking::kLast:
        append(last, std::move(found));
        break;
      case Taking::kAnyBudget:
        if (is_used) search.consider(found, control);
        break;
    }
  }
}

}  // namespace

GraphFinding find_schedule(const ScheduleModel& model, Bytes budget, Bytes goal, int threads,
                           const std::vector<Schedule>& seeds, SearchControl& control,
                           const GraphSearchParams& params, double share_for_first) {
  GraphSearch search(model, goal.count(), threads, control, params.search);
  // The bound and the starts of a large graph may take all of the time. Segments are found at once.
  if (params.use.segments_first && search.is_large()) {
    search.walk(schedules_of_segments(model, model.lean()));
  }
  SearchControl first = control.part(params.share_for_bound);
  GraphFinding found;
  control.report(-1);
  found.bound = bound_graph(model.graph(), budget, first, params.bound);
  control.report(-1);
  if (!search.best() || search.best()->time > found.bound.time.count()) {
    const GraphFacts facts(model.graph());
    found.bound.time =
        split_bound(facts, budget, found.bound, control.part(params.share_for_cases), params.bound);
  }
  const int64_t bound = found.bound.time.count();
  if (!search.best() || search.best()->time > bound) {
    const SearchControl for_starts = control.part(params.share_for_starts);
    const GraphFacts facts(model.graph());
    const Schedule base = params.starts.use.cheapest_variants
                              ? cheapest_variants(model, price_of(model, facts, found.bound, goal))
                              : model.lean();
    consider_starts(
        {model, base, facts, found.bound, goal, seeds, search.price_of_excess(), params.starts},
        search, for_starts);
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
