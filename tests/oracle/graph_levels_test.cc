// Compares the planner `graph_levels` and its bound with every plan with copies of small graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "oracle/score.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/with_copies.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/graph_families.h"
#include "support/random_chain.h"
#include "support/random_copies.h"
#include "support/random_graph.h"
#include "support/with_state.h"

namespace reprise::testing {
namespace {

internal::bound::CopyBound bound_of(const Graph& graph, const Machine& machine, Bytes budget) {
  internal::common::SearchControl control = internal::common::SearchControl({}, "test").untimed();
  return internal::bound::bound_with_copies(graph, budget, machine, control);
}

void ask(const Graph& graph, const Machine& machine, Bytes budget, size_t most_labels,
         Score& score) {
  const BestPlan best = best_with_copies(graph, machine, budget.count(), most_labels);
  if (!best.finished) {
    ++score.gave_up;
    return;
  }
  const internal::bound::CopyBound bound = bound_of(graph, machine, budget);
  if (best.time) {
    expect_valid(graph, machine, budget, best);
    ASSERT_LE(bound.least_peak, budget) << "the bound refuses a budget that suffices";
  }
  const PlanResult result = plan(graph, on(machine, budget));
  ASSERT_EQ(result.planner, "graph_levels");
  compare(best, result, bound.time, moves_values, score);
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
  EXPECT_GT(score.moved, 0);
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
    const BestPlan best = best_with_copies(graph, machine, budget.count(), 2'000);
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

// A value that may live in the second memory between steps stays, moves for each read, or is there between two
// reads, and the search decides that together with what is made again.
TEST(GraphLevelsOracle, HomesStayOrMove) {
  std::mt19937_64 random(25);
  Score score;
  int64_t stay = 0, both = 0;
  for (int number = 0; number < test_scale(45); ++number) {
    const Machine machine = random_machine(random, {.most_memories = 2, .shared = number % 3 == 0});
    Graph graph =
        with_state(random, random_graph(random, small_graphs(2, number % 2 == 0)), machine);
    for (Op& op : graph.ops) op.random = false;
    const auto homes = std::count_if(graph.values.begin(), graph.values.end(),
                                     [](const Value& value) { return !value.home.empty(); });
    if (homes == 0 || homes > 4 || graph.values.size() > 16) continue;
    SCOPED_TRACE("graph " + std::to_string(number) + ": " + describe(graph) + to_json(machine));
    const int64_t plain = baseline(graph).peak.count();
    const PlanResult none = plan(graph, on(machine, graph.fixed));
    const int64_t least = none.plan ? graph.fixed.count() : none.smallest_budget.value().count();
    for (const int percent : {0, 35, 70}) {
      const Bytes budget(least + std::max<int64_t>(0, plain - least) * percent / 100);
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      const BestPlan best = best_placed(graph, machine, budget.count(), 4'000);
      if (!best.finished) {
        ++score.gave_up;
        continue;
      }
      if (best.time) expect_valid(graph, machine, budget, best);
      const PlanResult result = plan(graph, on(machine, budget));
      compare(best, result, result.lower_bound, moves_values, score);
      if (::testing::Test::HasFailure()) return;
      if (!result.plan) continue;
      const std::vector<char> stays = stays_on_device(graph, result.plan->actions);
      const auto kept = std::count(stays.begin(), stays.end(), 1);
      stay += kept > 0;
      both += kept > 0 && moves_values(*result.plan);
    }
  }
  print("homes", score);
  std::cout << "plans where some stay " << stay << ", and others move " << both << "\n";
  EXPECT_GE(score.questions, 60);
  EXPECT_GT(stay, 20);
  EXPECT_GT(both, 10);
  EXPECT_LE(score.refused * 100, score.questions * 2);
  EXPECT_GE(score.optimal * 100, score.questions * 90);
  EXPECT_LE(score.sum * 200, static_cast<double>(score.questions));  // half a per cent in the mean
}

}  // namespace
}  // namespace reprise::testing
