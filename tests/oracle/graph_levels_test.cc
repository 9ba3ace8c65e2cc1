// Compares the planner `graph_levels` and its bound with every plan with copies of small graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "oracle/exhaustive_copies.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/with_copies.h"
#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"
#include "support/graph_families.h"
#include "support/random_chain.h"
#include "support/random_copies.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

PlanOptions on(const Machine& machine, Bytes budget) {
  PlanOptions options;
  options.budget = budget;
  options.machine = machine;
  options.threads = 1;
  options.time_limit = kNoTimeLimit;
  return options;
}

internal::bound::CopyBound bound_of(const Graph& graph, const Machine& machine, Bytes budget) {
  internal::common::SearchControl control = internal::common::SearchControl({}, "test").untimed();
  return internal::bound::bound_with_copies(graph, budget, machine, control);
}

// Counts how often the planner finds the best of all plans, and how much it loses otherwise.
struct Score {
  int64_t questions = 0, optimal = 0, gave_up = 0, refused = 0, impossible = 0, with_copies = 0;
  int64_t bound_exact = 0, bound_refuses = 0;
  double worst = 0, sum = 0, gap = 0;
};

double share_above(int64_t time, int64_t least) {
  return static_cast<double>(time - least) / static_cast<double>(std::max<int64_t>(1, least));
}

void ask(const Graph& graph, const Machine& machine, Bytes budget, size_t most_labels,
         Score& score) {
  const BestPlan best =
      best_plan_with_copies(graph, machine, budget.count(), most_labels, Copies::kAnywhere);
  if (!best.finished) {
    ++score.gave_up;
    return;
  }
  const internal::bound::CopyBound bound = bound_of(graph, machine, budget);
  const PlanResult result = plan(graph, on(machine, budget));
  ASSERT_EQ(result.planner, "graph_levels");
  if (!best.time) {
    ++score.impossible;
    score.bound_refuses += bound.least_peak > budget;
    ASSERT_FALSE(result.plan) << "a plan where there is none";
    return;
  }
  if (!best.actions.empty()) {  // The oracle's own plan is valid, and as fast as it says.
    const Timeline timeline = simulate(graph, best.actions, machine);
    ASSERT_EQ(timeline.time.count(), *best.time);
    ASSERT_LE(timeline.peak, budget);
    ASSERT_EQ(run_events(graph, machine, best.actions).time, *best.time);
  }
  ASSERT_LE(bound.least_peak, budget) << "the bound refuses a budget that suffices";
  ASSERT_LE(bound.time.count(), *best.time) << "the bound is above the optimum";
  ASSERT_LE(result.lower_bound.count(), *best.time);
  ++score.questions;
  if (!result.plan) {
    ++score.refused;
    return;
  }
  ASSERT_GE(result.plan->time.count(), *best.time) << "faster than every plan";
  if (result.termination == Termination::kOptimal) {
    ASSERT_EQ(result.plan->time.count(), *best.time);
  }
  const double loss = share_above(result.plan->time.count(), *best.time);
  score.optimal += loss == 0;
  score.bound_exact += bound.time.count() == *best.time;
  score.gap += share_above(*best.time, bound.time.count());
  score.sum += loss;
  score.worst = std::max(score.worst, loss);
  score.with_copies += moves_values(*result.plan);
}

void print(const char* name, const Score& score) {
  const auto asked = static_cast<double>(std::max<int64_t>(1, score.questions));
  std::cout << name << ": questions " << score.questions << ", optimal " << score.optimal
            << ", refused " << score.refused << ", mean loss " << 100 * score.sum / asked
            << " %, worst " << 100 * score.worst << " %, with copies " << score.with_copies
            << "; bound exact " << score.bound_exact << ", mean gap of the optimum "
            << 100 * score.gap / asked << " %, no plan " << score.impossible << ", of which proven "
            << score.bound_refuses << "; the oracle gave up " << score.gave_up << "\n";
}

struct Case {
  const char* name;
  RandomGraphOptions options;
  int graphs;
  bool shared;
  uint64_t seed;
};

Score score_of(const Case& question, size_t most_labels) {
  std::mt19937_64 random(question.seed);
  Score score;
  for (int number = 0; number < test_scale(question.graphs); ++number) {
    Graph graph = random_graph(random, question.options);
    for (Op& op : graph.ops) op.random = false;  // The oracle knows no order of random numbers.
    const Machine machine = random_machine(random, {.most_memories = 2, .shared = question.shared});
    if (graph.values.size() > 20) continue;
    SCOPED_TRACE("seed " + std::to_string(question.seed) + ", graph " + std::to_string(number) +
                 ": " + describe(graph) + to_json(machine));
    const int64_t plain = baseline(graph).peak.count();
    const int64_t least = std::min(plain, bound_of(graph, machine, Bytes(0)).least_peak.count());
    for (const int percent : {0, 35, 70}) {
      const Bytes budget(least + (plain - least) * percent / 100);
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      ask(graph, machine, budget, most_labels, score);
    }
    if (::testing::Test::HasFailure()) break;
  }
  print(question.name, score);
  return score;
}

RandomGraphOptions small_graphs(int forward, bool variants) {
  return {.min_forward = 1,
          .max_forward = forward,
          .max_time = 60,
          .variants = variants,
          .roles = false,
          .takes = false,
          .choices = false,
          .once = true};
}

void expect_good(const Score& score, int64_t least_questions) {
  EXPECT_GE(score.questions, least_questions);
  EXPECT_GT(score.with_copies, 0);
  EXPECT_LE(score.refused * 100, score.questions * 2);
  EXPECT_GE(score.optimal * 100, score.questions * 80);
  EXPECT_LE(score.sum * 100, static_cast<double>(score.questions));  // one per cent in the mean
}

// Counts how near the bound is to the best of all plans, over several budgets of a graph.
void expect_bounds_below(const Graph& graph, std::mt19937_64& random, Score& score) {
  const Machine machine = random_machine(random, {.most_memories = 2, .shared = random() % 2 == 0});
  SCOPED_TRACE(to_json(machine));
  const int64_t plain = baseline(graph).peak.count();
  const int64_t least = bound_of(graph, machine, Bytes(0)).least_peak.count();
  for (const int percent : {0, 20, 40, 60, 80}) {
    const Bytes budget(least + std::max<int64_t>(0, plain - least) * percent / 100);
    SCOPED_TRACE("budget " + std::to_string(budget.count()));
    const BestPlan best =
        best_plan_with_copies(graph, machine, budget.count(), 2'000, Copies::kAnywhere);
    if (!best.finished || !best.time) continue;
    const internal::bound::CopyBound bound = bound_of(graph, machine, budget);
    ASSERT_LE(bound.time.count(), *best.time) << "the bound is above the optimum";
    ++score.questions;
    score.bound_exact += bound.time.count() == *best.time;
    score.gap += share_above(*best.time, bound.time.count());
  }
}

// Without the planner there is time for many more questions about the bound alone.
TEST(GraphLevelsOracle, NoPlanIsBelowTheBound) {
  std::mt19937_64 random(24);
  Score score;
  for (int number = 0; number < test_scale(45); ++number) {
    Graph graph = random_graph(random, small_graphs(3, number % 2 == 0));
    for (Op& op : graph.ops) op.random = false;
    if (graph.values.size() > 20) continue;
    SCOPED_TRACE("graph " + std::to_string(number) + ": " + describe(graph));
    expect_bounds_below(graph, random, score);
    if (::testing::Test::HasFailure()) break;
  }
  RandomChainOptions options;
  options.founding_model = true;
  options.min_stages = options.max_stages = 2;
  options.random_stages = false;
  options.max_time = 200;
  for (int number = 0; number < test_scale(20); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE("chain " + std::to_string(number) + ": " + describe(chain));
    expect_bounds_below(lower(chain), random, score);
    if (::testing::Test::HasFailure()) break;
  }
  print("bounds", score);
  EXPECT_GT(score.questions, 100);
  EXPECT_GT(score.bound_exact, 20);
}

TEST(GraphLevelsOracle, OneVariantEach) {
  expect_good(score_of({"one variant", small_graphs(3, false), 24, false, 21}, 4'000), 30);
}
TEST(GraphLevelsOracle, SeveralVariants) {
  expect_good(score_of({"variants", small_graphs(2, true), 30, false, 22}, 4'000), 30);
}
TEST(GraphLevelsOracle, HalfDuplex) {
  expect_good(score_of({"half duplex", small_graphs(2, false), 24, true, 23}, 4'000), 30);
}

}  // namespace
}  // namespace reprise::testing
