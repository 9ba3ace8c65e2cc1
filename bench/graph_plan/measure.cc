#include "measure.h"

#include <fmt/format.h>

#include <ctime>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"

namespace reprise::bench {
namespace {

double processor_time() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

Row planned(const Graph& graph, const Baseline& plain, const std::string& planner, double share,
            const MeasureOptions& options) {
  const int64_t fixed = options.above_fixed ? graph.fixed.count() : 0;
  const int64_t whole = plain.peak.count() - fixed;
  PlanOptions ask;
  ask.budget = Bytes(fixed + static_cast<int64_t>(static_cast<double>(whole) * share));
  ask.planner = planner;
  ask.time_limit = Nanos(static_cast<int64_t>(options.time_limit * 1e9));
  ask.threads = options.threads;
  const double start = processor_time();
  const PlanResult result = plan(graph, ask);
  Row row{.planner = planner, .budget = share, .termination = to_string(result.termination)};
  row.processor_seconds = processor_time() - start;
  row.seconds = static_cast<double>(result.search.wall.count()) / 1e9;
  if (result.proof == Proof::kAllPlans) {
    row.bound = ratio(result.lower_bound.count(), plain.time.count());
  }
  if (result.smallest_budget) {
    row.smallest = ratio(result.smallest_budget->count() - fixed, whole);
  }
  if (!result.plan) return row;
  for (const Violation& v : verify(graph, *result.plan, result.budget, problem_id(graph))) {
    throw InternalError("invalid plan: " + v.message);
  }
  row.peak = ratio(result.plan->peak.count() - fixed, whole);
  row.time = ratio(result.plan->time.count(), plain.time.count());
  return row;
}

}  // namespace

GraphResult measure(const Graph& graph, const MeasureOptions& options) {
  const Baseline plain = baseline(graph);
  GraphResult result{graph.name, graph.ops.size(), plain.peak, plain.time, {}};
  for (const double share : options.budgets) {
    for (const std::string& planner : options.planners) {
      if (options.progress) {
        options.progress(fmt::format("{}: {:.0f} %, {}", graph.name, 100 * share, planner));
      }
      result.rows.push_back(planned(graph, plain, planner, share, options));
    }
  }
  return result;
}

}  // namespace reprise::bench
