// Compares the planner `levels` with every plan with copies of small chains, and with what it must
// beat.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "oracle/exhaustive_copies.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_copies.h"
#include "support/scale.h"

namespace reprise {
namespace {

using testing::best_plan_with_copies;
using testing::BestPlan;
using testing::found;
using testing::random_chain;
using testing::random_machine;
using testing::RandomChainOptions;
using testing::kNoTimeLimit;

Machine two_memories(std::mt19937_64& random, bool shared) {
  return random_machine(random, {.most_memories = 2, .shared = shared});
}

PlanOptions on(const Machine& machine, Bytes budget) {
  PlanOptions options;
  options.budget = budget;
  options.machine = machine;
  options.threads = 1;
  options.time_limit = kNoTimeLimit;
  return options;
}

// Counts how often the planner finds the best of all plans, and how much it loses otherwise.
struct Score {
  int64_t questions = 0, optimal = 0, gave_up = 0, refused = 0, with_copies = 0, bound_exact = 0;
  double worst = 0, sum = 0;
};

void ask(const Chain& chain, const Machine& machine, int percent, size_t most_labels,
         Score& score) {
  const Graph graph = lower(chain);
  const Bytes budget(baseline(graph).peak.count() * percent / 100);
  const BestPlan best = best_plan_with_copies(graph, machine, budget.count(), most_labels);
  if (!best.finished) {
    ++score.gave_up;
    return;
  }
  const PlanResult result = plan(chain, on(machine, budget));
  if (!best.time) {
    ASSERT_FALSE(result.plan) << "a plan where there is none";
    return;
  }
  if (!best.actions.empty()) {  // The oracle's own plan is valid, and as fast as it says.
    const Timeline timeline = simulate(graph, best.actions, machine);
    ASSERT_EQ(timeline.time.count(), *best.time);
    ASSERT_LE(timeline.peak, budget);
    ASSERT_EQ(testing::run_events(graph, machine, best.actions).time, *best.time);
  }
  ASSERT_LE(result.lower_bound.count(), *best.time) << "the bound is above the optimum";
  ++score.questions;
  if (!result.plan) {
    ++score.refused;
    return;
  }
  ASSERT_GE(result.plan->time.count(), *best.time) << "faster than every plan";
  if (result.termination == Termination::kOptimal) {
    ASSERT_EQ(result.plan->time.count(), *best.time);
  }
  const double loss = static_cast<double>(result.plan->time.count() - *best.time) /
                      static_cast<double>(std::max<int64_t>(1, *best.time));
  score.optimal += loss == 0;
  score.bound_exact += result.lower_bound.count() == *best.time;
  score.sum += loss;
  score.worst = std::max(score.worst, loss);
  score.with_copies += moves_values(*result.plan);
}

Score score_of(uint64_t seed, int chains, int stages, bool shared, size_t most_labels) {
  std::mt19937_64 random(seed);
  Score score;
  RandomChainOptions options;
  options.founding_model = true;
  options.min_stages = options.max_stages = stages;
  options.random_stages = false;
  options.max_time = 200;
  for (int number = 0; number < testing::test_scale(chains); ++number) {
    const Chain chain = random_chain(random, options);
    const Machine machine = two_memories(random, shared);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", chain " + std::to_string(number) + ": " +
                 testing::describe(chain) + to_json(machine));
    for (const int percent : {60, 75, 90}) ask(chain, machine, percent, most_labels, score);
    if (::testing::Test::HasFailure()) break;
  }
  std::cout << "L = " << stages << (shared ? ", half duplex possible" : "") << ": questions "
            << score.questions << ", optimal " << score.optimal << ", refused " << score.refused
            << ", mean loss " << 100 * score.sum / static_cast<double>(score.questions)
            << " %, worst " << 100 * score.worst << " %, with copies " << score.with_copies
            << ", bound exact " << score.bound_exact << ", the oracle gave up " << score.gave_up
            << "\n";
  return score;
}

void expect_good(const Score& score, int64_t least_questions) {
  EXPECT_GE(score.questions, least_questions);
  EXPECT_GT(score.with_copies, 0);
  EXPECT_EQ(score.refused, 0);
  EXPECT_GE(score.optimal * 100, score.questions * 95);
  EXPECT_LE(score.worst, 0.03);
}

TEST(LevelsOracle, TwoStages) { expect_good(score_of(11, 60, 2, false, 50'000), 20); }
TEST(LevelsOracle, TwoStagesHalfDuplex) { expect_good(score_of(14, 60, 2, true, 50'000), 20); }
TEST(LevelsOracle, ThreeStages) { expect_good(score_of(12, 12, 3, false, 30'000), 5); }

}  // namespace
}  // namespace reprise
