// What the exact chain planner promises beyond what every planner does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"

namespace reprise::testing {
namespace {

size_t run_count(const Plan& plan) {
  return static_cast<size_t>(
      std::count_if(plan.actions.begin(), plan.actions.end(),
                    [](const Action& action) { return action.kind == ActionKind::kRun; }));
}

TEST(ChainPlanner, EnoughMemoryMeansNoRecomputation) {
  for_chains(11, 200, one_option(9), [](const Chain& chain, std::mt19937_64&) {
    const Baseline plain = baseline(lower(chain));
    const PlanResult result = plan(chain, with("chain", plain.peak));
    ASSERT_TRUE(result.plan.has_value());
    // Zero times are frequent here: equally fast plans with re-runs exist.
    EXPECT_EQ(run_count(*result.plan), 2 * chain.stages.size() + 1);
    EXPECT_EQ(result.plan->time, plain.time);
  });
}

TEST(ChainPlanner, IsAtLeastAsGoodAsEveryOtherPlanner) {
  for_chains(12, 60, any_chain(8), [](const Chain& chain, std::mt19937_64&) {
    for (const char* other : {"keep_all", "periodic", "revolve"}) {
      for (const FrontierPoint& point : frontier(chain, with(other, Bytes())).points) {
        const PlanResult best = plan(chain, with("chain", point.budget));
        ASSERT_TRUE(best.plan.has_value()) << other << " at " << point.budget.count();
        EXPECT_LE(best.plan->time, point.time) << other << " at " << point.budget.count();
      }
    }
  });
}

TEST(ChainPlanner, AnIdentityStageOfNoSizeAndNoTimeChangesNothing) {
  for_chains(13, 200, any_chain(7), [](Chain chain, std::mt19937_64& random) {
    // Such a stage fits wherever a boundary has no bytes.
    const size_t at = random() % (chain.stages.size() + 1);
    if (at == 0) {
      chain.input = {};
    } else {
      chain.stages[at - 1].output = Bytes();
      chain.stages[at - 1].output_gradient = Bytes();
    }
    Chain longer = chain;
    Stage identity;
    identity.name = "identity";
    StageOption option;
    option.reads_input = random() % 2 == 0;
    option.reads_output = !chain.loss.consumes && random() % 2 == 0;
    identity.options.push_back(option);
    longer.stages.insert(longer.stages.begin() + static_cast<std::ptrdiff_t>(at), identity);
    EXPECT_EQ(frontier(chain).points, frontier(longer).points) << "at boundary " << at;
  });
}

// Long enough for the seed of the search (trimmed tables) to take part; the curve does without it.
TEST(ChainPlanner, SeedsDoNotChangeTheOptimum) {
  RandomChainOptions options = any_chain(28);
  options.min_stages = 18;
  options.max_size = 1000;
  options.max_time = 100'000;
  for_chains(14, 6, options, [](const Chain& chain, std::mt19937_64& random) {
    const Frontier curve = frontier(chain);
    for (int draw = 0; draw < 12; ++draw) {
      const FrontierPoint& point = curve.points[random() % curve.points.size()];
      const PlanResult result = plan(chain, with("chain", point.budget));
      ASSERT_TRUE(result.plan.has_value());
      EXPECT_EQ(result.plan->time, point.time);
      EXPECT_EQ(result.plan->peak, point.peak);
    }
  });
}

TEST(ChainPlanner, NearlyUnlimitedNumbersAreRefusedOrPlanned) {
  Chain chain;
  chain.name = "huge";
  const int64_t huge = INT64_MAX / 16;
  for (int i = 0; i < 3; ++i) {
    Stage stage;
    stage.output = Bytes(huge / 2);
    stage.forward.time = Nanos(huge / 200);
    stage.options.push_back(
        {.saved = Bytes(huge), .forward = {Nanos(huge / 200), {}}, .backward = {Nanos(1), {}}});
    chain.stages.push_back(stage);
  }
  const PlanResult result = plan(chain);
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_EQ(result.plan->time, result.baseline.time);
  EXPECT_TRUE(plan(chain, with("chain", result.baseline.peak)).plan.has_value());
  chain.stages[0].forward.time = Nanos(INT64_MAX / 2);  // three sweeps of it do not fit 64 bits
  EXPECT_THROW(plan(chain), InputError);
}

TEST(ChainPlanner, LongUniformChainsShareTheirCells) {
  Chain chain;
  chain.name = "uniform";
  chain.input = {Bytes(8), Bytes(8)};
  for (int i = 0; i < 400; ++i) {
    Stage stage;
    stage.output = Bytes(8);
    stage.forward.time = Nanos(100);
    stage.options.push_back(
        {.saved = Bytes(24), .forward = {Nanos(100), {}}, .backward = {Nanos(200), {}}});
    chain.stages.push_back(stage);
  }
  const PlanResult result = plan(chain, {.budget = "10%"});
  ASSERT_EQ(result.termination, Termination::kOptimal);
  EXPECT_LT(result.search.memory, Bytes(int64_t{64} << 20));
}

}  // namespace
}  // namespace reprise::testing
