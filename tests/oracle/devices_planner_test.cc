// Compares the planner `devices` and its bound with every plan of small graphs on two devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>

#include "oracle/exhaustive_devices.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"
#include "support/random_devices.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

struct Score {
  int64_t questions = 0, optimal = 0, gave_up = 0, refused = 0, impossible = 0, spread = 0;
  int64_t proven = 0, bound_exact = 0, small = 0;
  double worst = 0, sum = 0, gap = 0;
};

double share_above(int64_t time, int64_t least) {
  return static_cast<double>(time - least) / static_cast<double>(std::max<int64_t>(1, least));
}

PlanOptions on(const Machine& machine, Bytes budget) {
  PlanOptions options;
  options.budget = budget;
  options.machine = machine;
  options.planner = "devices";
  options.threads = 1;
  options.time_limit = kNoTimeLimit;
  return options;
}

bool uses_second(const Graph& graph, const Plan& plan, const Machine& machine) {
  const std::vector<BoundAction> bound = bind(graph, plan.actions, machine);
  return std::any_of(bound.begin(), bound.end(), [](const BoundAction& action) {
    return action.kind == ActionKind::kRun && action.at == 1;
  });
}

void ask(const Graph& graph, const Machine& machine, Bytes budget, size_t most_labels,
         Score& score) {
  const BestPlan best = best_on_devices(graph, machine, budget.count(), most_labels);
  if (!best.finished) {
    ++score.gave_up;
    return;
  }
  const PlanResult result = plan(graph, on(machine, budget));
  if (!best.time) {
    ++score.impossible;
    score.proven += result.termination == Termination::kInfeasible;
    ASSERT_FALSE(result.plan) << "a plan where there is none";
    return;
  }
  // The oracle's own plan is valid, and as fast as it says.
  Plan claimed;
  claimed.actions = best.actions;
  for (const Violation& violation : verify(graph, claimed, budget, machine)) {
    ASSERT_EQ(violation.kind, ViolationKind::kFalseClaim) << violation.message;
  }
  ASSERT_EQ(simulate(graph, best.actions, machine).time.count(), *best.time);
  ASSERT_EQ(run_events(graph, machine, best.actions).time, *best.time);
  ASSERT_NE(result.termination, Termination::kInfeasible);
  ASSERT_LE(result.lower_bound.count(), *best.time) << "the bound is above the optimum";
  ++score.questions;
  if (!result.plan) {
    ++score.refused;
    return;
  }
  ASSERT_GE(result.plan->time.count(), *best.time) << "faster than every plan";
  const double loss = share_above(result.plan->time.count(), *best.time);
  score.optimal += loss == 0;
  score.bound_exact += result.lower_bound.count() == *best.time;
  score.gap += share_above(*best.time, result.lower_bound.count());
  score.sum += loss;
  score.worst = std::max(score.worst, loss);
  score.spread += uses_second(graph, *result.plan, machine);
}

void print(const char* name, const Score& score) {
  const auto asked = static_cast<double>(std::max<int64_t>(1, score.questions));
  std::cout << name << ": questions " << score.questions << ", optimal " << score.optimal
            << ", refused " << score.refused << ", mean loss " << 100 * score.sum / asked
            << " %, worst " << 100 * score.worst << " %, on both devices " << score.spread
            << "; bound exact " << score.bound_exact << ", mean gap of the optimum "
            << 100 * score.gap / asked << " %, no plan " << score.impossible << ", of which proven "
            << score.proven << "; the oracle gave up " << score.gave_up << "\n";
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
  EXPECT_GT(score.spread, score.questions / 4);
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
  const BestPlan best = best_on_devices(graph, machine, budget.count(), 200'000);
  ASSERT_TRUE(best.finished);
  EXPECT_EQ(*best.time, 31'000'000);
  EXPECT_EQ(plan(graph, on(machine, budget)).plan->time.count(), *best.time);
}

TEST(DevicesOracle, FullDuplex) { expect_good(score_of("full duplex", 71, 14, false, 10'000), 14); }
TEST(DevicesOracle, HalfDuplex) { expect_good(score_of("half duplex", 72, 10, true, 10'000), 7); }

}  // namespace
}  // namespace reprise::testing
