// Compares the chain planner with exhaustive search. It is equal to the best persistent schedule at
// every budget, never below the best schedule of any kind, and hardly ever above it when inputs may
// be dropped.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "oracle/exhaustive.h"
#include "oracle/persistent.h"
#include "plan/chain/bound.h"
#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/search.h"
#include "plan/chain/surroundings.h"
#include "plan/chain/table.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/random_chain.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

// A chain with more schedules than this is passed over.
constexpr size_t kScheduleLimit = 1500;

struct Family {
  const char* name;
  int chains;  // in a quick run
  RandomChainOptions options;
  uint64_t seed = 1;
};

RandomChainOptions founding(int stages, bool dominant) {
  RandomChainOptions options;
  options.founding_model = true;
  options.max_stages = stages;
  options.dominant_workspaces = dominant;
  return options;
}

RandomChainOptions free(int stages, int options_a_stage, bool dominant, bool cheap) {
  RandomChainOptions options;
  options.max_stages = stages;
  options.max_options = options_a_stage;
  options.dominant_workspaces = dominant;
  options.cheap_options = cheap;
  return options;
}

RandomChainOptions stopping(int stages, int options_a_stage, bool dominant) {
  RandomChainOptions options = free(stages, options_a_stage, dominant, false);
  options.early_stops = true;
  return options;
}

RandomChainOptions tiny_numbers() {
  RandomChainOptions options = free(5, 1, false, false);
  options.max_size = 2;  // ties everywhere
  options.max_time = 2;
  return options;
}

std::vector<Family> families() {
  return {{"founding", 200, founding(5, false)},
          {"founding_large_workspaces", 200, founding(5, true)},
          {"free", 200, free(5, 1, false, false)},
          {"free_large_workspaces", 200, free(5, 1, true, false)},
          {"options", 200, free(3, 3, false, false)},
          {"cheap_options", 200, free(3, 3, false, true)},
          {"cheap_options_large_workspaces", 200, free(4, 2, true, true)},
          {"early_stops", 200, stopping(5, 1, false)},
          {"early_stops_of_options", 200, stopping(3, 3, true)},
          {"ties", 200, tiny_numbers()}};
}

constexpr internal::chain::Schedules kClasses[] = {internal::chain::Schedules::kInputsOnly,
                                                   internal::chain::Schedules::kPersistent,
                                                   internal::chain::Schedules::kDroppedInputs};

// Returns the best time of a curve that has a point within the budget.
int64_t time_within(const Frontier& curve, Bytes budget) {
  int64_t best = INT64_MAX;
  for (const FrontierPoint& point : curve.points) {
    if (point.budget <= budget) best = point.time.count();
  }
  return best;
}

class ChainOracle : public ::testing::TestWithParam<Family> {};

std::string context(const Family& family, int number, const Chain& chain) {
  return std::string("family ") + family.name + ", seed " + std::to_string(family.seed) +
         ", chain " + std::to_string(number) + ": " + describe(chain);
}

// Compares the planner's answer for one budget with the frontier of a class.
void expect_best(const Chain& chain, const Graph& graph, const char* schedule_class,
                 const std::vector<PeakAndTime>& frontier, int64_t budget) {
  const PlanResult result =
      plan(chain, {.budget = Bytes(budget), .schedule_class = schedule_class});
  const std::optional<int64_t> best = best_within(frontier, budget);
  ASSERT_EQ(result.schedule_class, schedule_class);
  if (!best) {
    ASSERT_EQ(result.termination, Termination::kInfeasible) << "budget " << budget;
    ASSERT_EQ(result.smallest_budget, Bytes(frontier.front().peak));
    return;
  }
  ASSERT_EQ(result.termination, Termination::kOptimal) << "budget " << budget;
  ASSERT_EQ(result.plan->time.count(), *best) << "budget " << budget;
  ASSERT_EQ(result.lower_bound.count(), *best) << "budget " << budget;
  const Timeline timeline = simulate(graph, *result.plan);
  ASSERT_EQ(timeline.time, result.plan->time);
  ASSERT_EQ(timeline.peak, result.plan->peak);
  ASSERT_TRUE(verify(graph, *result.plan, Bytes(budget)).empty()) << "budget " << budget;
  for (const PeakAndTime& point : frontier) {
    if (point.time != *best) continue;
    ASSERT_LE(point.peak, result.plan->peak.count());
  }
}

// Runs through all budgets of the chains of a family.
void expect_best_everywhere(const Family& family, const char* schedule_class, bool inputs_only) {
  std::mt19937_64 random(family.seed);
  int compared = 0;
  for (int number = 0; number < test_scale(family.chains); ++number) {
    const Chain chain = random_chain(random, family.options);
    const auto frontier = persistent_frontier(chain, kScheduleLimit, inputs_only);
    if (!frontier) continue;
    ++compared;
    SCOPED_TRACE(context(family, number, chain));
    const Graph graph = lower(chain);
    const int64_t plain = baseline(graph).peak.count();
    for (int64_t budget = frontier->front().peak - 1; budget <= plain + 1; ++budget) {
      if (budget < 0) continue;
      expect_best(chain, graph, schedule_class, *frontier, budget);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  ::testing::Test::RecordProperty("compared", compared);
  EXPECT_GT(compared, test_scale(family.chains) / 3) << "too many chains were passed over";
}

TEST_P(ChainOracle, EqualsTheBestPersistentScheduleAtEveryBudget) {
  expect_best_everywhere(GetParam(), "persistent", /*inputs_only=*/false);
}

TEST_P(ChainOracle, EqualsTheBestScheduleThatKeepsInputsOnlyAtEveryBudget) {
  expect_best_everywhere(GetParam(), "inputs-only", /*inputs_only=*/true);
}

// At budgets between the points of the curve the optimum can only be smaller than at the point
// below, and the planner's time is the same.
TEST_P(ChainOracle, NeverBelowTheBestOfAllSchedulesAndMostlyEqual) {
  const Family& family = GetParam();
  std::mt19937_64 random(family.seed + 1000);
  RandomChainOptions options = family.options;
  options.max_options = std::min(options.max_options, 2);
  int persistent_equal = 0, equal = 0, points = 0;
  for (int number = 0; number < test_scale(family.chains); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE(context(family, number, chain));
    const Graph graph = lower(chain);
    const Frontier larger = frontier(chain);
    ASSERT_EQ(larger.schedule_class, "persistent+dropped-inputs");
    for (const FrontierPoint& point : frontier(chain, {.schedule_class = "persistent"}).points) {
      const auto least = least_time_of_any_plan(graph, point.budget.count());
      ASSERT_TRUE(least.has_value()) << "budget " << point.budget.count();
      const int64_t best = time_within(larger, point.budget);
      ASSERT_GE(best, *least) << "budget " << point.budget.count();
      ASSERT_LE(best, point.time.count()) << "budget " << point.budget.count();
      ++points;
      persistent_equal += point.time.count() == *least;
      equal += best == *least;
    }
  }
  RecordProperty("points", points);
  RecordProperty("persistent_equal_to_the_optimum", persistent_equal);
  RecordProperty("equal_to_the_optimum", equal);
  EXPECT_GT(persistent_equal, points / 4);
  EXPECT_GT(equal, points * 9 / 10);
}

// The larger class is asked budget by budget. Its plans are real, and never slower than the
// persistent ones.
TEST_P(ChainOracle, DroppedInputsNeverLoseAgainstPersistentSchedules) {
  const Family& family = GetParam();
  std::mt19937_64 random(family.seed + 3000);
  for (int number = 0; number < test_scale(family.chains / 8); ++number) {
    const Chain chain = random_chain(random, family.options);
    SCOPED_TRACE(context(family, number, chain));
    const Graph graph = lower(chain);
    const Frontier curve = frontier(chain);
    const int64_t plain = baseline(graph).peak.count();
    for (int64_t budget = curve.points.front().budget.count() - 1; budget <= plain; ++budget) {
      if (budget < 0) continue;
      const PlanResult result = plan(chain, {.budget = Bytes(budget)});
      if (budget < curve.points.front().budget.count()) {
        ASSERT_EQ(result.termination, Termination::kInfeasible);
        ASSERT_EQ(result.smallest_budget, curve.points.front().budget);
        continue;
      }
      ASSERT_EQ(result.termination, Termination::kOptimal);
      ASSERT_EQ(result.plan->time.count(), time_within(curve, Bytes(budget)));
      ASSERT_TRUE(verify(graph, *result.plan, Bytes(budget)).empty()) << "budget " << budget;
    }
  }
}

// Adds some stages, repeated so that there are equal cells to share.
Chain with_repeats(Chain chain) {
  const std::vector<Stage> block(chain.stages.begin(),
                                 chain.stages.begin() + 1 + (chain.stages.size() > 1));
  chain.stages.insert(chain.stages.begin(), block.begin(), block.end());
  return chain;
}

// The search has switches: sharing equal cells, the bound of a known plan on the cost, the cap on
// the memory. None of them may change the answer.
TEST_P(ChainOracle, PruningAndSharingChangeNothing) {
  const Family& family = GetParam();
  std::mt19937_64 random(family.seed + 2000);
  for (int number = 0; number < test_scale(family.chains / 5); ++number) {
    const Chain chain = with_repeats(random_chain(random, family.options));
    SCOPED_TRACE(context(family, number, chain));
    const internal::chain::ChainModel model = internal::chain::make_model(chain);
    internal::common::SearchControl control(PlanOptions{}, "chain");
    for (const internal::chain::Schedules schedules : kClasses) {
      const internal::chain::ChainCells shared(model, true, schedules),
          apart(model, false, schedules);
      ASSERT_LE(shared.order().size(), apart.order().size());
      const size_t root = apart.slot(0, model.stages, true);
      const internal::chain::CurveTable whole(model, apart, {}, control);
      ASSERT_EQ(internal::chain::smallest_memory(model, apart, 1, control)[root],
                whole.curve(root).front().memory);
      for (const internal::chain::CurvePoint& step : whole.curve(root)) {
        for (const internal::chain::ChainCells* cells : {&shared, &apart}) {
          const size_t slot = cells->slot(0, model.stages, true);
          for (const internal::chain::CurveLimits limits :
               {internal::chain::CurveLimits{step.memory, step.cost},
                internal::chain::CurveLimits{step.memory, internal::chain::kInfeasible},
                internal::chain::CurveLimits{internal::chain::kInfeasible, step.cost}}) {
            const internal::chain::CurveTable table(model, *cells, limits, control);
            ASSERT_EQ(internal::chain::cost_at(table.curve(slot), step.memory), step.cost);
          }
        }
      }
    }
  }
}

// Bounds and surroundings leave out only cells that no plan within the limit on the cost has. With
// the optimum as the limit the answer is the same; below the optimum there is none.
TEST_P(ChainOracle, BoundsAtTheOptimumChangeNothing) {
  const Family& family = GetParam();
  std::mt19937_64 random(family.seed + 3000);
  for (int number = 0; number < test_scale(family.chains / 5); ++number) {
    const Chain chain = with_repeats(random_chain(random, family.options));
    SCOPED_TRACE(context(family, number, chain));
    const internal::chain::ChainModel model = internal::chain::make_model(chain);
    internal::common::SearchControl control(PlanOptions{}, "chain");
    for (const internal::chain::Schedules schedules : kClasses) {
      for (const bool share : {true, false}) {
        const internal::chain::ChainCells cells(model, share, schedules);
        const size_t root = cells.slot(0, model.stages, true);
        const internal::chain::CurveTable whole(model, cells, {}, control);
        for (const internal::chain::CurvePoint& step : whole.curve(root)) {
          internal::chain::LossBound bound(model, schedules, step.memory);
          if (cells.shared()) bound.tabulate(cells);
          for (const int64_t grid : {1, 5, 1000}) {
            internal::chain::CurveLimits limits{
                .memory = step.memory, .cost = step.cost, .grid = grid, .bound = &bound};
            const internal::chain::CurveTable coarse(model, cells, limits, control);
            const internal::chain::Surroundings around(model, cells, coarse, step.cost, control);
            limits.around = &around;
            limits.grid = 1;
            const internal::chain::CurveTable fine(model, cells, limits, control);
            ASSERT_EQ(internal::chain::cost_at(fine.curve(root), step.memory), step.cost);
            ASSERT_EQ(fine.curve(root).front().memory, step.memory);
          }
          const internal::chain::CurveLimits below{
              .memory = step.memory, .cost = step.cost - 1, .bound = &bound};
          ASSERT_TRUE(
              internal::chain::CurveTable(model, cells, below, control).curve(root).empty());
        }
      }
    }
  }
}

// The passes go from coarse to fine, and each gives its bounds to the next. They end with the
// answer of a single exact pass, and no bound is above the optimum.
TEST_P(ChainOracle, CoarsePassesAndBoundsChangeNothing) {
  const Family& family = GetParam();
  std::mt19937_64 random(family.seed + 4000);
  for (int number = 0; number < test_scale(family.chains / 5); ++number) {
    const Chain chain = with_repeats(random_chain(random, family.options));
    SCOPED_TRACE(context(family, number, chain));
    const internal::chain::ChainModel model = internal::chain::make_model(chain);
    internal::common::SearchControl control(PlanOptions{}, "chain");
    for (const internal::chain::Schedules schedules : kClasses) {
      const internal::chain::ChainCells cells(model, true, schedules);
      const internal::chain::SearchSpace space{model, cells};
      const internal::chain::CurveTable whole(model, cells, {}, control);
      const auto floors = internal::chain::smallest_memory(model, cells, 1, control);
      for (const internal::chain::CurvePoint& step : whole.curve(space.root())) {
        ASSERT_LE(internal::chain::LossBound(model, schedules, step.memory).lower(), step.cost);
        for (const auto passes :
             {internal::chain::CoarsePasses::kAlways, internal::chain::CoarsePasses::kExactOnly}) {
          internal::chain::Bracket bracket{.best =
                                               internal::chain::greedy(space, floors, step.memory)};
          internal::chain::narrow(space, step.memory, {.coarse_passes = passes}, bracket, control);
          ASSERT_TRUE(bracket.exact);
          ASSERT_EQ(bracket.lower, step.cost);
          ASSERT_EQ(bracket.best->cost, step.cost);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ChainOracle, ::testing::ValuesIn(families()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace reprise::testing
