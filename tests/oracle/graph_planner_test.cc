// The planner of graphs against exhaustive search: bound <= optimum <= plan <= budget; how often the
// plan is the optimum is printed, and is four times of five at least. What its schedules cost is what the
// simulator says.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>

#include "oracle/exhaustive.h"
#include "plan/graph_schedule.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/plan/plan.h"
#include "support/graph_families.h"
#include "support/planner_questions.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

class GraphOracle : public ::testing::TestWithParam<GraphFamily> {};

TEST_P(GraphOracle, ThePlanLiesBetweenTheOptimumAndTheBudget) {
  int64_t feasible = 0, planned = 0, optimal = 0, proven = 0;
  double excess = 0;
  GraphFamily family = GetParam();
  family.graphs /= 3;
  for_graphs(family, [&](const Graph& graph, std::mt19937_64&) {
    const int64_t plain = baseline(graph).peak.count();
    for (int64_t budget = plain; budget >= 0; --budget) {
      SCOPED_TRACE("budget " + std::to_string(budget));
      const std::optional<int64_t> best = least_time_of_any_plan(graph, budget);
      const PlanResult result = plan(graph, with("graph", Bytes(budget)));
      if (!best) {
        ASSERT_FALSE(result.plan.has_value());
        break;  // nothing smaller fits, either
      }
      ++feasible;
      ASSERT_NE(result.termination, Termination::kInfeasible);
      ASSERT_LE(result.lower_bound.count(), *best);
      if (!result.plan) continue;
      ++planned;
      ASSERT_TRUE(verify(graph, *result.plan, Bytes(budget)).empty());
      ASSERT_GE(result.plan->time.count(), *best);
      optimal += result.plan->time.count() == *best;
      proven += result.termination == Termination::kOptimal;
      if (*best > 0) {
        excess += static_cast<double>(result.plan->time.count()) / static_cast<double>(*best) - 1;
      }
    }
  });
  const auto share = [&](int64_t count) {
    return 100 * static_cast<double>(count) / static_cast<double>(feasible);
  };
  std::cout << GetParam().name << ": " << feasible << " budgets with a plan: found at "
            << share(planned) << " %, optimal at " << share(optimal) << " %, proven at "
            << share(proven) << " %, " << 100 * excess / static_cast<double>(planned)
            << " % above the optimum\n";
  EXPECT_GT(share(optimal), 80);
}

INSTANTIATE_TEST_SUITE_P(Families, GraphOracle, ::testing::ValuesIn(graph_families()),
                         [](const auto& family) { return std::string(family.param.name); });

TEST_P(GraphOracle, SchedulesCostWhatTheSimulatorSays) {
  for_graphs(GetParam(), [](const Graph& graph, std::mt19937_64& random) {
    internal::ScheduleWalk walk(graph);
    internal::Schedule schedule = walk.keep_all();
    ASSERT_TRUE(walk.walk(schedule));
    EXPECT_EQ(walk.runs(), plain_runs(graph));
    EXPECT_EQ((Baseline{Bytes(walk.peak()), Nanos(walk.time())}), baseline(graph));
    for (int draw = 0; draw < 10; ++draw) {
      for (size_t g = 0; g < schedule.gaps.size(); ++g) {
        if (walk.gaps()[g].fixed) continue;
        schedule.gaps[g] = static_cast<internal::Keeping>(random() % 3);
      }
      if (!walk.walk(schedule)) continue;
      const Timeline timeline = simulate(graph, with_frees(graph, walk.runs()));
      ASSERT_EQ(timeline.time.count(), walk.time());
      ASSERT_EQ(timeline.peak.count(), walk.peak());
    }
  });
}

}  // namespace
}  // namespace reprise::testing
