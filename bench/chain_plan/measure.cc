#include "measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "published_solver.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"

namespace reprise::bench {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Nanos nanos(double seconds) { return Nanos(static_cast<int64_t>(seconds * 1e9)); }

double over(Nanos time, Nanos plain) {
  return static_cast<double>(time.count()) / static_cast<double>(plain.count()) - 1;
}

// The inner loop of the published solver does this many additions a second. The number serves the
// estimate only.
constexpr double kPublishedRate = 2e8;

size_t count_different(std::vector<Stage> stages) {
  size_t different = 0;
  for (auto stage = stages.begin(); stage != stages.end(); ++stage) {
    stage->name.clear();
    different += std::find(stages.begin(), stage, *stage) == stage;
  }
  return different;
}

class Measurement {
 public:
  Measurement(const Chain& chain, const MeasureOptions& options)
      : chain_(chain), options_(options), graph_(lower(chain)), plain_(baseline(graph_)) {}

  ChainResult run() {
    ChainResult result{.name = chain_.name,
                       .stages = chain_.stages.size(),
                       .different = count_different(chain_.stages),
                       .plain_peak = plain_.peak,
                       .plain_time = plain_.time};
    for (const double share : options_.budgets) {
      const Bytes budget(static_cast<int64_t>(static_cast<double>(plain_.peak.count()) * share));
      const auto add = [&](Row row) {
        row.budget = share;
        result.rows.push_back(std::move(row));
      };
      add(published(budget));
      const double longest =
          *std::max_element(options_.time_limits.begin(), options_.time_limits.end());
      add(planned("periodic", budget, longest));
      add(planned("min_peak", budget, longest));
      for (const double limit : options_.time_limits) add(planned("chain_slots", budget, limit));
      for (const double limit : options_.time_limits) {
        add(planned("chain", budget, limit, "persistent"));
      }
      for (const double limit : options_.time_limits) add(planned("chain", budget, limit));
    }
    return result;
  }

 private:
  void say(const std::string& what) const {
    if (options_.progress) options_.progress(fmt::format("{}: {}", chain_.name, what));
  }

  Row published(Bytes budget) const {
    Row row{.method = "published", .planner = fmt::format("published, {} slots", options_.slots)};
    const PublishedCost cost = published_cost(chain_, options_.slots);
    const double estimate = cost.updates / kPublishedRate;
    if (cost.tables > options_.published_bytes) {
      row.skipped = fmt::format("tables of {} exceed {}", format_bytes(cost.tables),
                                format_bytes(options_.published_bytes));
      return row;
    }
    if (estimate > options_.published_seconds) {
      row.skipped = fmt::format("would take about {:.0f} s", estimate);
      return row;
    }
    say(row.planner);
    const Clock::time_point start = Clock::now();
    const auto runs = published_solver(chain_, budget, options_.slots);
    row.seconds = since(start);
    row.tables = cost.tables;
    row.termination = runs ? "feasible" : "no plan";
    if (!runs) return row;
    judge(with_frees(graph_, *runs), budget, row);
    return row;
  }

  // The published schedule may be over the budget, and the row notes it. Any other fault of it is
  // our own mistake.
  void judge(const std::vector<Action>& actions, Bytes budget, Row& row) const {
    const Timeline timeline = simulate(graph_, actions);
    Plan plan;
    plan.problem = problem();
    plan.budget = std::max(budget, timeline.peak);
    plan.peak = timeline.peak;
    plan.time = timeline.time;
    plan.baseline = plain_;
    plan.actions = actions;
    require(verify(graph_, plan, plan.budget, plan.problem));
    row.overhead = over(timeline.time, plain_.time);
    if (timeline.peak > budget) {
      row.over_budget = static_cast<double>((timeline.peak - budget).count()) /
                        static_cast<double>(budget.count());
    }
  }

  Row planned(const std::string& planner, Bytes budget, double limit,
              const std::string& schedule_class = "") const {
    Row row{.method = planner, .planner = planner};
    const bool simple = planner == "periodic" || planner == "min_peak";  // no time limit, no bound
    if (!simple) row.planner += fmt::format(", {} s", limit);
    if (!schedule_class.empty()) {
      row.method += ", " + schedule_class;
      row.planner += ", " + schedule_class;
    }
    say(row.planner);
    PlanOptions ask;
    ask.budget = budget;
    ask.planner = planner;
    ask.schedule_class = schedule_class;
    ask.time_limit = nanos(limit);
    ask.threads = options_.threads;
    const PlanResult result = plan(chain_, ask);
    row.seconds = static_cast<double>(result.search.wall.count()) / 1e9;
    row.tables = result.search.memory;
    row.termination = to_string(result.termination);
    if (result.smallest_budget) {
      row.smallest = static_cast<double>(result.smallest_budget->count()) /
                     static_cast<double>(plain_.peak.count());
    }
    if (!result.plan) return row;
    require(verify(graph_, *result.plan, budget, problem()));
    row.overhead = over(result.plan->time, plain_.time);
    if (!simple) row.bound = std::max(0.0, over(result.lower_bound, plain_.time));
    return row;
  }

  ProblemId problem() const { return problem_id(chain_); }

  static void require(const std::vector<Violation>& violations) {
    if (!violations.empty()) throw InternalError("invalid plan: " + violations.front().message);
  }

  const Chain& chain_;
  const MeasureOptions& options_;
  Graph graph_;
  Baseline plain_;
};

}  // namespace

ChainResult measure(const Chain& chain, const MeasureOptions& options) {
  return Measurement(chain, options).run();
}

CurveResult measure_curve(const Chain& chain, const std::string& schedule_class, double time_limit,
                          int threads) {
  PlanOptions ask;
  ask.schedule_class = schedule_class;
  ask.time_limit = nanos(time_limit);
  ask.threads = threads;
  CurveResult result;
  const Clock::time_point start = Clock::now();
  const Frontier curve = frontier(chain, ask);
  result.seconds = since(start);
  result.name = chain.name + ", " + curve.schedule_class;
  result.points = curve.points.size();
  result.exact = std::all_of(curve.points.begin(), curve.points.end(),
                             [](const FrontierPoint& p) { return p.time == p.lower_bound; });
  return result;
}

}  // namespace reprise::bench
