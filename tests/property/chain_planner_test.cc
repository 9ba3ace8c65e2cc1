// Checks promises of the exact chain planner that go beyond those of every planner.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/classes.h"
#include "plan/chain/merge.h"
#include "plan/chain/model.h"
#include "plan/chain/search.h"
#include "plan/chain/table.h"
#include "plan/common/search_control.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"

namespace reprise::testing {
namespace {

constexpr Nanos kPatience{600'000'000'000};

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
    // Zero times are frequent here, so there are plans with re-runs that are equally fast.
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
    if (at < chain.stages.size()) {  // the identity may read what would be given back
      for (StageOption& behind : chain.stages[at].options) behind.consumes_input = false;
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

RandomChainOptions long_chain(int stages) {
  RandomChainOptions options = any_chain(stages);
  options.min_stages = stages * 2 / 3;
  options.max_size = 1000;
  options.max_time = 100'000;
  return options;
}

// The chain is long enough for merged chains, bounds and coarse passes to take part. The curve does
// without them.
TEST(ChainPlanner, TheSearchForOneBudgetAgreesWithTheCurve) {
  for_chains(14, 4, long_chain(96), [](const Chain& chain, std::mt19937_64& random) {
    for (const char* schedules : {"inputs-only", "persistent", "persistent+dropped-inputs"}) {
      const Frontier curve =
          frontier(chain, {.schedule_class = schedules, .time_limit = kPatience});
      ASSERT_EQ(curve.schedule_class, schedules);
      for (int draw = 0; draw < 6; ++draw) {
        const FrontierPoint& point = curve.points[random() % curve.points.size()];
        const PlanResult result = plan(
            chain, {.budget = point.budget, .schedule_class = schedules, .time_limit = kPatience});
        ASSERT_EQ(result.termination, Termination::kOptimal);
        EXPECT_EQ(result.schedule_class, schedules);
        EXPECT_EQ(result.plan->time, point.time);
        EXPECT_EQ(result.plan->peak, point.peak);
      }
    }
  });
}

// Returns a budget between the smallest feasible one and plain training's peak.
Bytes budget_at(const Chain& chain, double share) {
  const PlanResult none = plan(chain, {.budget = Bytes(), .time_limit = kPatience});
  const auto least = static_cast<double>(none.smallest_budget.value().count());
  const auto most = static_cast<double>(none.baseline.peak.count());
  return Bytes(static_cast<int64_t>(least + share * (most - least)));
}

TEST(ChainPlanner, ThreadsChangeNothing) {
  for_chains(15, 3, long_chain(72), [](const Chain& chain, std::mt19937_64&) {
    const PlanOptions one{.budget = budget_at(chain, 0.4), .time_limit = kPatience, .threads = 1};
    const Plan expected = plan(chain, one).plan.value();
    const Frontier curve = frontier(chain, one);
    for (const int threads : {2, 4}) {
      PlanOptions several = one;
      several.threads = threads;
      const Plan planned = plan(chain, several).plan.value();
      EXPECT_EQ(planned.actions, expected.actions) << threads << " threads";
      EXPECT_EQ(planned.lower_bound, expected.lower_bound) << threads << " threads";
      EXPECT_EQ(frontier(chain, several), curve) << threads << " threads";
    }
  });
}

// A plan of a merged chain is also a plan of the chain, with no more memory and the same time.
TEST(ChainPlanner, MergedChainsHaveOnlyPlansOfTheWholeChain) {
  for_chains(16, 60, any_chain(24), [](const Chain& chain, std::mt19937_64& random) {
    const Graph graph = lower(chain);
    const internal::chain::ChainModel model = internal::chain::make_model(chain);
    internal::common::SearchControl control(PlanOptions{}, "chain");
    const internal::chain::MergedChain merged =
        internal::chain::merge_stages(model, 1 + random() % chain.stages.size());
    for (const auto schedules : {internal::chain::Schedules::kPersistent,
                                 internal::chain::Schedules::kDroppedInputs}) {
      const internal::chain::ChainCells cells(merged.model, true, schedules);
      const internal::chain::SearchSpace space{merged.model, cells};
      const internal::chain::CurveTable table(merged.model, cells, {}, control);
      for (const internal::chain::CurvePoint& step : table.curve(space.root())) {
        const internal::chain::Trace plan = internal::chain::split_blocks(
            model, merged, internal::chain::traced(space, table, step.memory));
        const Timeline timeline = simulate(graph, with_frees(graph, plan.runs));
        EXPECT_LE(timeline.peak.count(), step.memory + internal::chain::bytes_around(model));
        EXPECT_EQ(timeline.time.count(), model.time_of(step.cost));
      }
    }
  });
}

TEST(ChainPlanner, WithoutTimeThereIsStillAPlanAndATrueBound) {
  for_chains(17, 3, long_chain(300), [](const Chain& chain, std::mt19937_64&) {
    const Bytes budget = budget_at(chain, 0.3);
    const PlanResult best = plan(chain, {.budget = budget, .time_limit = kPatience});
    ASSERT_EQ(best.termination, Termination::kOptimal);
    for (const int64_t limit : {0, 20'000'000, 100'000'000}) {
      const PlanResult hasty = plan(chain, {.budget = budget, .time_limit = Nanos(limit)});
      if (!hasty.plan) continue;
      EXPECT_LE(hasty.lower_bound, hasty.plan->time);
      if (hasty.schedule_class == best.schedule_class) {
        EXPECT_LE(hasty.lower_bound, best.plan->time);
        EXPECT_GE(hasty.plan->time, best.plan->time);
      }
    }
  });
}

TEST(ChainPlanner, TenThousandStagesHaveAPlanAndABound) {
  std::mt19937_64 random(18);
  RandomChainOptions options = one_option(10'000);
  options.min_stages = 10'000;
  options.max_size = 1'000'000;
  options.max_time = 1'000'000;
  options.weight_gradients = options.own_gradients = false;
  const PlanResult result = plan(random_chain(random, options), {.budget = "50%"});
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_LT(result.search.memory, Bytes(int64_t{2} << 30));
  EXPECT_LT(result.plan->time.count() - result.lower_bound.count(), result.plan->time.count() / 50);
}

// Repeats the whole chain, so that the same segment is at many places.
Chain repeated(Chain chain, size_t stages) {
  const std::vector<Stage> block = chain.stages;
  while (chain.stages.size() < stages) {
    chain.stages.insert(chain.stages.end(), block.begin(), block.end());
  }
  for (size_t i = 0; i < chain.stages.size(); ++i) chain.stages[i].name = "s" + std::to_string(i);
  return chain;
}

TEST(ChainPlanner, RepeatedStagesAreSearchedLikeOthers) {
  RandomChainOptions options = any_chain(5);
  options.min_stages = 2;
  options.max_size = 100;
  options.max_time = 1000;
  for_chains(19, 4, options, [](const Chain& block, std::mt19937_64& random) {
    const Chain chain = repeated(block, 90);
    for (const char* schedules : {"inputs-only", "persistent", "persistent+dropped-inputs"}) {
      const Frontier curve =
          frontier(chain, {.schedule_class = schedules, .time_limit = kPatience});
      for (int draw = 0; draw < 4; ++draw) {
        const FrontierPoint& point = curve.points[random() % curve.points.size()];
        PlanOptions ask{.budget = point.budget,
                        .schedule_class = schedules,
                        .time_limit = kPatience,
                        .threads = 1};
        const Plan expected = plan(chain, ask).plan.value();
        EXPECT_EQ(expected.time, point.time);
        EXPECT_EQ(expected.peak, point.peak);
        for (const int threads : {2, 4}) {
          ask.threads = threads;
          EXPECT_EQ(plan(chain, ask).plan.value().actions, expected.actions);
        }
      }
    }
  });
}

// Makes blocks of four stages, as networks repeat them.
Chain blocks_of_four(size_t stages) {
  Chain block;
  block.name = "blocks";
  block.input = {Bytes(4), Bytes(4)};
  constexpr int64_t kShapes[4][3] = {{16, 48, 20}, {16, 32, 8}, {64, 144, 40}, {16, 64, 26}};
  for (const auto& [output, saved, time] : kShapes) {
    Stage stage;
    stage.output = Bytes(output);
    stage.forward.time = Nanos(time);
    stage.options.push_back(
        {.saved = Bytes(saved), .forward = {Nanos(time), {}}, .backward = {Nanos(2 * time), {}}});
    block.stages.push_back(stage);
  }
  return repeated(block, stages);
}

TEST(ChainPlanner, WithoutTimeTheFirstPlanIsOfAMergedChain) {
  const Chain chain = blocks_of_four(2000);
  const PlanResult hasty = plan(chain, {.budget = "50%", .time_limit = Nanos(0)});
  ASSERT_TRUE(hasty.plan.has_value());
  EXPECT_LT(hasty.plan->time.count(), hasty.baseline.time.count() * 3 / 2);
}

TEST(ChainPlanner, AThousandRepeatedStagesAreSolvedInSeconds) {
  const PlanResult result =
      plan(blocks_of_four(1000),
           {.budget = "50%", .schedule_class = "persistent", .time_limit = Nanos(120'000'000'000)});
  EXPECT_EQ(result.termination, Termination::kOptimal);
  EXPECT_LT(result.search.memory, Bytes(int64_t{128} << 20));
}

// Costs are counted in their common divisor, which no answer shows.
TEST(ChainPlanner, UnitsOfTimeChangeNothing) {
  for_chains(20, 30, any_chain(8), [](const Chain& chain, std::mt19937_64& random) {
    Chain slower = chain;
    const auto factor = static_cast<int64_t>(1 + random() % 1'000'000);
    const auto scale = [&](Cost& cost) { cost.time = Nanos(cost.time.count() * factor); };
    scale(slower.loss.cost);
    for (Stage& stage : slower.stages) {
      scale(stage.forward);
      for (StageOption& option : stage.options) {
        scale(option.forward);
        scale(option.backward);
      }
    }
    const Frontier curve = frontier(chain), longer = frontier(slower);
    ASSERT_EQ(curve.points.size(), longer.points.size());
    for (size_t k = 0; k < curve.points.size(); ++k) {
      EXPECT_EQ(curve.points[k].budget, longer.points[k].budget);
      EXPECT_EQ(curve.points[k].time.count() * factor, longer.points[k].time.count());
    }
  });
}

TEST(ChainPlanner, UnknownScheduleClassesAreRefused) {
  const PlanOptions options{.schedule_class = "all"};
  Chain chain;
  chain.name = "one";
  chain.stages.emplace_back().options.emplace_back();
  EXPECT_THROW(plan(chain, options), InputError);
  EXPECT_THROW(frontier(chain, options), InputError);
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
