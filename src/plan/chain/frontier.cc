// This file computes the whole curve of a chain: time as a function of the budget, from one table
// without limits. If that takes too long, it asks for single budgets from coarse to fine, each with
// its best plan and bound.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/chain/classes.h"
#include "plan/chain/planner.h"
#include "plan/chain/table.h"
#include "plan/common/by_level.h"
#include "plan/common/search_control.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::chain {

using common::SearchControl;
using common::thread_count;

namespace {

// Shares of the time: for the table of the first class if another class follows, and for all
// tables.
constexpr double kFirstTable = 0.3, kTables = 0.6;

// Single budgets are asked at 2, 3, 5, 9, ... points, up to this many points.
constexpr int64_t kMostSamples = 257;
constexpr double kSampleShare = 0.2;  // share of the time that is left, for each sample

std::optional<std::vector<FrontierPoint>> whole_curve(const ChainModel& model,
                                                      Schedules schedules, int threads,
                                                      SearchControl& control) {
  const ChainCells cells(model, /*share=*/true, schedules);
  if (!cells.complete()) return std::nullopt;
  const CurveTable table(model, cells, {.threads = threads}, control);
  if (!table.complete()) return std::nullopt;
  std::vector<FrontierPoint> points;
  for (const CurvePoint& step : table.curve(cells.slot(0, model.stages, true))) {
    const Nanos time(model.time_of(step.cost));
    // A point with the same time, fewer re-runs and more memory does not belong to the curve.
    if (!points.empty() && points.back().time == time) continue;
    const Bytes budget(step.memory + bytes_around(model));
    points.push_back({budget, budget, time, time});
  }
  return points;
}

// Samples collects budgets and plans one after the other, and makes a curve of them.
class Samples {
 public:
  Samples(const ChainProblem& problem, const ChainModel& model, SearchControl& control)
      : problem_(problem),
        model_(model),
        threads_(thread_count(problem.options.threads)),
        control_(control) {}

  std::vector<FrontierPoint> take() {
    const int64_t most = problem_.baseline.peak.count();
    ask(most);
    if (points_.empty()) return {};
    const int64_t least = smallest_budget(most);
    ask(least);
    for (int64_t parts = 2; parts < kMostSamples; parts *= 2) {
      for (int64_t part = 1; part < parts; part += 2) {
        if (control_.out_of_time()) return curve();
        ask(least + (most - least) / parts * part);
      }
    }
    return curve();
  }

 private:
  // Returns a budget with a plan. Unless time ran out, no plan was found at another budget that is
  // lower by at most 1/1,000 of plain training's peak.
  int64_t smallest_budget(int64_t feasible) {
    int64_t infeasible = 0;
    while (feasible - infeasible > problem_.baseline.peak.count() / 1000 + 1) {
      const int64_t middle = infeasible + (feasible - infeasible) / 2;
      if (control_.out_of_time()) break;
      Bracket bracket;
      SearchControl part = control_.part(kSampleShare);
      improve_by_blocks(model_, Schedules::kPersistent, middle - bytes_around(model_),
                        kWorthwhileGain, threads_, bracket, part);
      (bracket.best ? feasible : infeasible) = middle;
    }
    return feasible;
  }

  void ask(int64_t budget) {
    const int64_t memory = budget - bytes_around(model_);
    SearchControl part = control_.part(kSampleShare);
    const ClassResult outcome =
        search_class(model_, Schedules::kPersistent, memory, std::nullopt, threads_, part);
    if (!outcome.bracket.best) return;
    const Timeline timeline =
        simulate(problem_.graph, with_bound_frees(problem_.graph, outcome.bracket.best->runs));
    points_.push_back({timeline.peak, timeline.peak, timeline.time,
                       Nanos(model_.time_of(outcome.bracket.lower))});
  }

  std::vector<FrontierPoint> curve() {
    std::sort(points_.begin(), points_.end(), [](const FrontierPoint& a, const FrontierPoint& b) {
      return std::tie(a.budget, a.time) < std::tie(b.budget, b.time);
    });
    std::vector<FrontierPoint> best;
    for (const FrontierPoint& point : points_) {
      if (best.empty() || point.time < best.back().time) best.push_back(point);
    }
    return best;
  }

  const ChainProblem& problem_;
  const ChainModel& model_;
  int threads_;
  SearchControl& control_;
  std::vector<FrontierPoint> points_;
};

}  // namespace

Curve exact_frontier(const ChainProblem& problem) {
  const std::vector<Schedules> wanted = wanted_classes(problem.options.schedule_class);
  SearchControl control(problem.options, "chain");
  SearchControl tables = control.part(kTables);
  const ChainModel model = make_model(problem.chain, Stops::kEarly);
  const int threads = thread_count(problem.options.threads);
  Curve curve;
  for (const Schedules schedules : wanted) {
    SearchControl part = schedules == wanted.back() ? tables : tables.part(kFirstTable);
    std::optional<std::vector<FrontierPoint>> points = whole_curve(model, schedules, threads, part);
    // The larger class takes several times as long, so it is not tried after a failure of the
    // smaller one.
    if (!points) break;
    curve = {std::move(*points), class_name(schedules)};
  }
  // Single budgets are asked of persistent schedules.
  if (curve.points.empty() && wanted.front() == Schedules::kPersistent) {
    curve = {Samples(problem, model, control).take(), class_name(Schedules::kPersistent)};
  }
  return curve;
}

}  // namespace reprise::internal::chain
