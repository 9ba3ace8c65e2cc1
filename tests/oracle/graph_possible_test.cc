// Checks which variants are left out of a graph for a budget. The rest still has every plan within
// the budget that is as fast as any.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>

#include "oracle/exhaustive.h"
#include "plan/graph/possible.h"
#include "reprise/check/simulate.h"
#include "support/graph_families.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

std::optional<internal::graph::PossibleGraph> possible(const Graph& graph, int64_t budget) {
  return internal::graph::leave_out_impossible(
      graph, Bytes(budget), internal::common::SearchControl({}, "test").untimed());
}

class PossibleGraphs : public ::testing::TestWithParam<GraphFamily> {};

TEST_P(PossibleGraphs, HaveTheFastestPlanOfTheWholeGraph) {
  int64_t smaller = 0;
  for_graphs(GetParam(), [&](const Graph& graph, std::mt19937_64&) {
    const int64_t plain = baseline(graph).peak.count();
    for (int64_t budget = 0; budget <= plain; ++budget) {
      SCOPED_TRACE("budget " + std::to_string(budget));
      const std::optional<internal::graph::PossibleGraph> rest = possible(graph, budget);
      if (!rest) continue;
      ++smaller;
      EXPECT_EQ(least_time_of_any_plan(rest->graph, budget), least_time_of_any_plan(graph, budget));
      ASSERT_EQ(rest->runs.size(), rest->graph.ops.size());
      for (size_t op = 0; op < rest->runs.size(); ++op) {
        const std::vector<Variant>& variants = rest->graph.ops[op].variants;
        ASSERT_EQ(rest->runs[op].size(), variants.size());
        for (size_t k = 0; k < variants.size(); ++k) {
          const auto& run = rest->runs[op][k];
          EXPECT_EQ(graph.ops[run.op].id, rest->graph.ops[op].id);
          EXPECT_EQ(graph.ops[run.op].variants[run.variant], variants[k]);
        }
      }
    }
  });
  RecordProperty("budgets_with_less", static_cast<int>(smaller));
  // Families of one variant have nothing that could be left out.
  const RandomGraphOptions& options = GetParam().options;
  EXPECT_TRUE(smaller > 0 || !options.variants);
}

INSTANTIATE_TEST_SUITE_P(Families, PossibleGraphs, ::testing::ValuesIn(graph_families()),
                         [](const auto& family) { return std::string(family.param.name); });

// One variant is fast and needs more memory than there is; the other one is slow.
TEST(PossibleGraph, LeavesOutWhatDoesNotFit) {
  std::mt19937_64 random(1);
  Graph graph = random_graph(random, {});
  const int64_t plain = baseline(graph).peak.count();
  Variant fast = graph.ops.back().variants.front();
  fast.name = "fast";
  fast.time = Nanos();
  fast.workspace = Bytes(plain + 1);
  graph.ops.back().variants.push_back(fast);
  EXPECT_FALSE(possible(graph, 3 * plain + 1));
  const std::optional<internal::graph::PossibleGraph> rest = possible(graph, plain);
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->graph.ops.back().variants.size(), graph.ops.back().variants.size() - 1);
  EXPECT_EQ(rest->graph.ops.size(), graph.ops.size());
}

}  // namespace
}  // namespace reprise::testing
