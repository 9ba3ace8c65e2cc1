// Checks the curve of a graph. Each point lies between the optimum of its budget and the planner's
// claim, more memory never costs time, and the curve reaches from plain training to the smallest
// peak.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "oracle/exhaustive.h"
#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "support/graph_families.h"
#include "support/planner_questions.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

class GraphFrontier : public ::testing::TestWithParam<GraphFamily> {};

TEST_P(GraphFrontier, PointsLieBetweenTheOptimumAndTheirBudgets) {
  GraphFamily family = GetParam();
  family.graphs /= 10;
  for_graphs(family, [](const Graph& graph, std::mt19937_64&) {
    const Baseline plain = baseline(graph);
    const Frontier curve = frontier(graph);
    EXPECT_EQ(curve.planner, "graph");
    EXPECT_EQ(curve.schedule_class, "all");
    EXPECT_EQ(curve.problem, problem_id(graph));
    ASSERT_FALSE(curve.points.empty());
    EXPECT_LE(curve.points.back().budget, plain.peak);
    EXPECT_LE(curve.points.back().time, plain.time);
    for (size_t p = 0; p < curve.points.size(); ++p) {
      const FrontierPoint& point = curve.points[p];
      SCOPED_TRACE("budget " + std::to_string(point.budget.count()));
      const std::optional<int64_t> best = least_time_of_any_plan(graph, point.budget.count());
      ASSERT_TRUE(best.has_value());
      EXPECT_EQ(point.peak, point.budget);
      EXPECT_LE(point.lower_bound.count(), *best);
      EXPECT_GE(point.time.count(), *best);
      if (p == 0) continue;
      EXPECT_GT(point.budget, curve.points[p - 1].budget);
      EXPECT_LT(point.time, curve.points[p - 1].time);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Families, GraphFrontier, ::testing::ValuesIn(graph_families()),
                         [](const auto& family) { return std::string(family.param.name); });

TEST(GraphFrontiers, OfPlannersWithoutACurveAreInputErrors) {
  std::mt19937_64 random(1);
  const Graph graph = random_graph(random);
  EXPECT_THROW(frontier(graph, with("dtr", Bytes())), InputError);
  EXPECT_THROW(frontier(graph, with("chain", Bytes())), InputError);
}

TEST(GraphFrontiers, WithoutTimeArePlainTraining) {
  std::mt19937_64 random(1);
  const Graph graph = random_graph(random);
  PlanOptions options;
  options.time_limit = Nanos(0);
  EXPECT_FALSE(frontier(graph, options).points.empty());
}

}  // namespace
}  // namespace reprise::testing
