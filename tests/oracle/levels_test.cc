// Compares the planner `levels` with every plan with copies of small chains, and with what it must
// beat.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "oracle/score.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_copies.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

Machine two_memories(std::mt19937_64& random, bool shared) {
  return random_machine(random, {.most_memories = 2, .shared = shared});
}

void ask(const Chain& chain, const Machine& machine, int percent, size_t most_labels,
         Score& score) {
  const Graph graph = lower(chain);
  const Bytes budget(baseline(graph).peak.count() * percent / 100);
  const BestPlan best =
      best_with_copies(graph, machine, budget.count(), most_labels, Copies::kAroundTheLoss);
  if (!best.finished) {
    ++score.gave_up;
    return;
  }
  if (best.time) expect_valid(graph, machine, budget, best);
  const PlanResult result = plan(chain, on(machine, budget));
  compare(best, result, result.lower_bound, moves_values, score);
}

Score score_of(uint64_t seed, int chains, int stages, bool shared, size_t most_labels) {
  std::mt19937_64 random(seed);
  Score score;
  RandomChainOptions options;
  options.founding_model = true;
  options.min_stages = options.max_stages = stages;
  options.random_stages = false;
  options.max_time = 200;
  for (int number = 0; number < test_scale(chains); ++number) {
    const Chain chain = random_chain(random, options);
    const Machine machine = two_memories(random, shared);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", chain " + std::to_string(number) + ": " +
                 describe(chain) + to_json(machine));
    for (const int percent : {60, 75, 90}) ask(chain, machine, percent, most_labels, score);
    if (::testing::Test::HasFailure()) break;
  }
  print("L = " + std::to_string(stages) + (shared ? ", half duplex possible" : ""), score);
  return score;
}

void expect_good(const Score& score, int64_t least_questions) {
  EXPECT_GE(score.questions, least_questions);
  EXPECT_GT(score.moved, 0);
  EXPECT_EQ(score.refused, 0);
  EXPECT_GE(score.optimal * 100, score.questions * 95);
  EXPECT_LE(score.worst, 0.03);
}

TEST(LevelsOracle, TwoStages) { expect_good(score_of(11, 60, 2, false, 50'000), 20); }
TEST(LevelsOracle, TwoStagesHalfDuplex) { expect_good(score_of(14, 60, 2, true, 50'000), 20); }
TEST(LevelsOracle, ThreeStages) { expect_good(score_of(12, 12, 3, false, 45'000), 5); }

}  // namespace
}  // namespace reprise::testing
