// Compares the planner `devices` and its bound with every plan of small graphs on two devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>

#include "oracle/score.h"
#include "reprise/io/json.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_devices.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

bool uses_second(const Graph& graph, const Plan& plan, const Machine& machine) {
  const std::vector<BoundAction> bound = bind(graph, plan.actions, machine);
  return std::any_of(bound.begin(), bound.end(), [](const BoundAction& action) {
    return action.kind == ActionKind::kRun && action.at == 1;
  });
}

void ask(const Graph& graph, const Machine& machine, Bytes budget, size_t most_labels,
         Score& score) {
  const BestPlan best = best_with_copies(graph, machine, budget.count(), most_labels);
  if (!best.finished) {
    ++score.gave_up;
    return;
  }
  if (best.time) expect_valid(graph, machine, budget, best);
  const PlanResult result = plan(graph, on(machine, budget, "devices"));
  compare(best, result, result.lower_bound,
          [&](const Plan& plan) { return uses_second(graph, plan, machine); }, score);
}

Score score_of(const char* name, uint64_t seed, int graphs, bool shared, size_t most_labels) {
  std::mt19937_64 random(seed);
  Score score;
  for (int number = 0; number < test_scale(graphs); ++number) {
    Machine machine = random_devices(random, {.most_memories = 2, .shared = shared});
    Graph graph = random_graph(random, {.min_forward = 1,
                                        .max_forward = 2,
                                        .max_time = 60,
                                        .variants = false,
                                        .roles = false,
                                        .takes = false,
                                        .choices = false});
    for (Op& op : graph.ops) op.random = false;  // The oracle knows no order of random numbers.
    graph = spread(random, graph, machine);
    if (graph.ops.size() > 6) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ", graph " + std::to_string(number) + ": " +
                 describe(graph) + to_json(machine));
    const int64_t plain = baseline(graph).peak.count();
    for (const int percent : {60, 80, 100}) {
      const Bytes budget(plain * percent / 100);
      machine.memories[1].capacity = Bytes(plain * static_cast<int64_t>(50 + random() % 50) / 100);
      SCOPED_TRACE("budget " + std::to_string(budget.count()) + ", capacity " +
                   std::to_string(machine.memories[1].capacity->count()));
      ask(graph, machine, budget, most_labels, score);
    }
    if (::testing::Test::HasFailure()) break;
  }
  print(name, score);
  return score;
}

void expect_good(const Score& score, int64_t least_questions) {
  EXPECT_GE(score.questions, least_questions);
  EXPECT_GT(score.moved, score.questions / 4);
  EXPECT_LE(score.refused * 100, score.questions * 2);
  EXPECT_GE(score.optimal * 100, score.questions * 80);
  EXPECT_LE(score.sum * 100, static_cast<double>(2 * score.questions));  // two per cent in the mean
}

// The pair of files that the documentation shows.
TEST(DevicesOracle, TheExampleIsTheBestOfAllPlans) {
  const std::filesystem::path folder =
      std::filesystem::path(REPRISE_SOURCE_DIR) / "examples/devices";
  const Graph graph = load_graph(folder / "two_towers.json");
  const Machine machine = load_machine(folder / "cpu_gpu.json");
  const Bytes budget = baseline(graph).peak;
  const BestPlan best = best_with_copies(graph, machine, budget.count(), 200'000);
  ASSERT_TRUE(best.finished);
  EXPECT_EQ(*best.time, 31'000'000);
  EXPECT_EQ(plan(graph, on(machine, budget, "devices")).plan->time.count(), *best.time);
}

TEST(DevicesOracle, FullDuplex) { expect_good(score_of("full duplex", 71, 14, false, 10'000), 14); }
TEST(DevicesOracle, HalfDuplex) { expect_good(score_of("half duplex", 72, 16, true, 10'000), 7); }

}  // namespace
}  // namespace reprise::testing
