// Compares the planner `floating` with exhaustive search: over all floating schedules, and over all
// schedules.
#include "oracle/floating.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "oracle/exhaustive.h"
#include "oracle/persistent.h"
#include "plan/chain/floating.h"
#include "plan/chain/model.h"
#include "plan/common/search_control.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/random_chain.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

// A chain with more schedules than this is passed over.
constexpr size_t kMostFloating = 6000;

struct FloatingFamily {
  const char* name;
  RandomChainOptions options;
  bool improves = false;  // whether some of its chains have plans that `chain` has not
};

RandomChainOptions random_stages(int stages, int options_a_stage) {
  RandomChainOptions options;
  options.max_stages = stages;
  options.max_options = options_a_stage;
  options.cheap_options = false;
  return options;
}

std::vector<FloatingFamily> floating_families() {
  RandomChainOptions founding = random_stages(5, 1);
  founding.founding_model = true;
  RandomChainOptions large_workspaces = random_stages(5, 1);
  large_workspaces.dominant_workspaces = true;
  RandomChainOptions cheap = random_stages(3, 3);
  cheap.cheap_options = true;
  RandomChainOptions stopping = random_stages(4, 2);
  stopping.early_stops = true;
  RandomChainOptions ties = random_stages(5, 1);
  ties.max_size = 2;
  ties.max_time = 2;
  return {{"founding", founding, true},
          {"free", random_stages(5, 1)},
          {"large_workspaces", large_workspaces},
          {"cheap_options", cheap},
          {"early_stops", stopping},
          {"ties", ties}};
}

class FloatingOracle : public ::testing::TestWithParam<FloatingFamily> {};

PlanResult ask(const Chain& chain, int64_t budget, const char* planner, const char* of_class) {
  return plan(chain, {.budget = Bytes(budget), .planner = planner, .schedule_class = of_class});
}

void expect_best_floating(const Chain& chain, const Graph& graph,
                          const std::vector<PeakAndTime>& all, int64_t budget) {
  const PlanResult result = ask(chain, budget, "floating", "floating");
  const std::optional<int64_t> best = best_within(all, budget);
  ASSERT_EQ(result.schedule_class, "floating");
  if (!best) {
    ASSERT_EQ(result.termination, Termination::kInfeasible) << "budget " << budget;
    ASSERT_EQ(result.smallest_budget, Bytes(all.front().peak));
    return;
  }
  ASSERT_EQ(result.termination, Termination::kOptimal) << "budget " << budget;
  ASSERT_EQ(result.plan->time.count(), *best) << "budget " << budget;
  ASSERT_EQ(result.lower_bound.count(), *best) << "budget " << budget;
  ASSERT_TRUE(verify(graph, *result.plan, Bytes(budget)).empty()) << "budget " << budget;
}

TEST_P(FloatingOracle, EqualsTheBestFloatingScheduleAtEveryBudget) {
  std::mt19937_64 random(11);
  int compared = 0;
  for (int number = 0; number < test_scale(100); ++number) {
    const Chain chain = random_chain(random, GetParam().options);
    const auto all = floating_frontier(chain, kMostFloating);
    if (!all) continue;
    ++compared;
    SCOPED_TRACE("chain " + std::to_string(number) + ": " + describe(chain));
    const Graph graph = lower(chain);
    const int64_t plain = baseline(graph).peak.count();
    for (int64_t budget = all->front().peak - 1; budget <= plain + 1; ++budget) {
      if (budget >= 0) expect_best_floating(chain, graph, *all, budget);
      if (HasFatalFailure()) return;
    }
  }
  RecordProperty("compared", compared);
  EXPECT_GT(compared, test_scale(100) / 2) << "too many chains were passed over";
}

// With dropped inputs, too, no answer is worse than that of `chain` or better than the best of all
// schedules.
TEST_P(FloatingOracle, LiesBetweenChainAndTheBestOfAllSchedules) {
  std::mt19937_64 random(12);
  RandomChainOptions options = GetParam().options;
  options.max_options = std::min(options.max_options, 2);
  int points = 0, optimal = 0, better = 0;
  for (int number = 0; number < test_scale(60); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE("chain " + std::to_string(number) + ": " + describe(chain));
    const Graph graph = lower(chain);
    for (const FrontierPoint& point : frontier(chain).points) {
      for (const int64_t less : {0, 1}) {
        const int64_t budget = point.budget.count() - less;
        const PlanResult floats = ask(chain, budget, "floating", "");
        const PlanResult without = ask(chain, budget, "chain", "persistent+dropped-inputs");
        const auto least = least_time_of_any_plan(graph, budget);
        ASSERT_EQ(floats.schedule_class, "floating+dropped-inputs");
        ASSERT_TRUE(floats.plan || !without.plan) << "budget " << budget;
        if (!floats.plan) continue;
        ASSERT_EQ(floats.termination, Termination::kOptimal);
        ASSERT_GE(floats.plan->time.count(), *least) << "budget " << budget;
        if (without.plan) {
          ASSERT_LE(floats.plan->time, without.plan->time) << "budget " << budget;
        }
        ++points;
        optimal += floats.plan->time.count() == *least;
        better += !without.plan || floats.plan->time < without.plan->time;
      }
    }
  }
  RecordProperty("points", points);
  RecordProperty("equal_to_the_optimum", optimal);
  RecordProperty("better_than_chain", better);
  EXPECT_GT(optimal, points * 9 / 10);
  EXPECT_TRUE(better > 0 || !GetParam().improves);
}

// Grids and limits on the reach are ways to less work. Coarse grids change no answer. With a limit,
// plans are those of the class, and the bound holds for it.
TEST_P(FloatingOracle, GridsChangeNothingAndALimitKeepsPlansAndBounds) {
  using internal::chain::ClassResult;
  using internal::chain::CoarsePasses;
  std::mt19937_64 random(13);
  RandomChainOptions options = GetParam().options;
  options.max_stages += 3;
  options.max_time *= 1000;
  for (int number = 0; number < test_scale(40); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE("chain " + std::to_string(number) + ": " + describe(chain));
    const auto model = internal::chain::make_model(chain, internal::chain::Stops::kEarly);
    internal::common::SearchControl control(PlanOptions{}, "floating");
    for (const bool drops : {false, true}) {
      const auto search = [&](size_t reach, int64_t memory, CoarsePasses passes) {
        ClassResult result;
        search_floating(model, {drops, reach, 2, passes}, memory, result, control);
        return result;
      };
      const int64_t floor = search(model.stages, -1, CoarsePasses::kAlways).floor;
      for (const int64_t memory : {floor, floor + floor / 8 + 1, floor + floor / 3 + 1}) {
        const ClassResult exact = search(model.stages, memory, CoarsePasses::kExactOnly);
        const ClassResult coarse = search(model.stages, memory, CoarsePasses::kAlways);
        const ClassResult limited = search(1, memory, CoarsePasses::kAlways);
        const int64_t best = model.time_of(exact.bracket.best->cost);
        ASSERT_EQ(model.time_of(exact.bracket.lower), best);
        ASSERT_EQ(model.time_of(coarse.bracket.best->cost), best);
        ASSERT_EQ(model.time_of(coarse.bracket.lower), best);
        if (!limited.bracket.best) continue;
        ASSERT_GE(model.time_of(limited.bracket.best->cost), best);
        ASSERT_LE(model.time_of(limited.bracket.lower), best);
      }
    }
  }
}

TEST(Floating, ALongChainHasAReachThatFits) {
  std::mt19937_64 random(14);
  RandomChainOptions options = random_stages(60, 1);
  options.min_stages = 60;
  const auto model =
      internal::chain::make_model(random_chain(random, options), internal::chain::Stops::kEarly);
  EXPECT_EQ(internal::chain::floating_reach(model, true, 1'000'000), 60);
  EXPECT_EQ(internal::chain::floating_reach(model, true, 1'000), 0);
  const size_t some = internal::chain::floating_reach(model, true, 20'000);
  EXPECT_GT(some, 0);
  EXPECT_LT(some, internal::chain::floating_reach(model, false, 20'000));
}

// A chain that is too long for any move, and a search that has no time, have the plans of `chain`
// and a bound.
TEST(Floating, WithoutRoomOrTimeThereAreThePlansOfChain) {
  std::mt19937_64 random(15);
  RandomChainOptions options = random_stages(7'000, 1);
  for (const int stages : {60, 7'000}) {
    options.min_stages = options.max_stages = stages;
    options.max_time = 1'000'000;
    const Chain chain = random_chain(random, options);
    const PlanResult result = plan(
        chain, {.budget = "70%", .planner = "floating", .time_limit = Nanos(300'000'000 / stages)});
    ASSERT_TRUE(result.plan.has_value()) << stages << " stages";
    EXPECT_LE(result.lower_bound, result.plan->time);
    EXPECT_LT(result.search.memory, Bytes(int64_t{2} << 30));
    const PlanResult refused =
        plan(chain, {.budget = Bytes(1), .planner = "floating", .time_limit = Nanos(50'000'000)});
    EXPECT_FALSE(refused.plan.has_value()) << stages << " stages";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FloatingOracle, ::testing::ValuesIn(floating_families()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace reprise::testing
