// Compares the planner of graphs with exhaustive search: bound <= optimum <= plan <= budget. The
// test prints how often the plan is the optimum, which must be at least four times of five.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>

#include "oracle/exhaustive.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/graph_families.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_graph.h"
#include "support/scale.h"

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
        break;  // a smaller budget fits neither
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

// A lowered chain is a graph like any other. Its bound is below the plan of the exact planner of
// chains, and its plan is near that one.
TEST(GraphPlannerOnChains, IsNearTheChainPlanner) {
  RandomChainOptions options;
  options.max_stages = 6;
  options.max_options = 2;
  std::mt19937_64 random(3);
  int64_t asked = 0, planned = 0, equal = 0, faster = 0;
  for (int number = 0; number < test_scale(60); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE("seed 3, chain " + std::to_string(number) + ": " + describe(chain));
    const Graph graph = lower(chain);
    const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
    const Bytes budget(static_cast<int64_t>(plain - random() % (plain / 2 + 1)));
    const PlanResult of_graph = plan(graph, with("graph", budget));
    const PlanResult of_chain = plan(chain, with("chain", budget));
    if (!of_chain.plan) continue;
    ++asked;
    ASSERT_NE(of_graph.termination, Termination::kInfeasible);
    ASSERT_LE(of_graph.lower_bound, of_chain.plan->time);
    if (!of_graph.plan) continue;
    ++planned;
    equal += of_graph.plan->time == of_chain.plan->time;
    faster += of_graph.plan->time < of_chain.plan->time;
  }
  std::cout << "chains: of " << asked << " plans of chain, graph finds one for " << planned << ", "
            << equal << " as fast and " << faster << " faster\n";
  EXPECT_GT(10 * (equal + faster), 8 * asked);
}

}  // namespace
}  // namespace reprise::testing
