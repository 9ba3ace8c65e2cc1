// Tests plans of least energy: exact for chains, against every persistent schedule; never above the
// fastest plan for graphs and for machines with channels.
#include "reprise/plan/energy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oracle/persistent.h"
#include "reprise/check/verify.h"
#include "reprise/model/lower.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

constexpr size_t kMostSchedules = 1500;

Power random_power(std::mt19937_64& random, const Graph& graph, uint64_t most = 8) {
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
  Power power{below(3), 1 + below(5), below(4), {}};
  for (const Op& op : graph.ops) {
    if (below(2) == 0) power.ops.push_back({op.id, "", below(most + 1)});
    for (const Variant& variant : op.variants) {
      if (below(3) == 0) power.ops.push_back({op.id, variant.name, below(most + 1)});
    }
  }
  return power;
}

// Finds anew what a variant draws. The row of the variant says it, else the row of the op, else the
// power.
int64_t draw_of(const Power& power, const std::string& op, const std::string& variant) {
  std::optional<int64_t> of_op;
  for (const OpPower& row : power.ops) {
    if (row.op != op) continue;
    if (row.variant == variant) return row.dynamic_mw;
    if (row.variant.empty()) of_op = row.dynamic_mw;
  }
  return of_op.value_or(power.dynamic_mw);
}

// Returns the chain with `by_time` x time + `by_energy` x energy in the place of each time.
Chain weighted(const Chain& chain, const Power& power, int64_t by_time, int64_t by_energy) {
  Chain result = chain;
  const auto price = [&](Nanos& time, const std::string& op, const std::string& variant) {
    time = time * (by_time + by_energy * (power.static_mw + draw_of(power, op, variant)));
  };
  for (size_t i = 0; i < result.stages.size(); ++i) {
    const std::string number = std::to_string(i);
    price(result.stages[i].forward.time, "F" + number, "fast");
    for (StageOption& option : result.stages[i].options) {
      price(option.forward.time, "F" + number, option.name);
      price(option.backward.time, "B" + number, option.name);
    }
  }
  price(result.loss.cost.time, "loss", "default");
  return result;
}

PlanOptions persistent_within(Bytes budget) {
  PlanOptions options;
  options.budget = budget;
  options.schedule_class = "persistent";
  options.threads = 1;
  return options;
}

TEST(EnergyOracle, ChainsTakeTheLeastOfAllPersistentSchedules) {
  int64_t questions = 0, slower = 0;
  for_chains(11, 100, any_chain(3), [&](const Chain& chain, std::mt19937_64& random) {
    const Power power = random_power(random, lower(chain));
    const auto best = persistent_frontier(weighted(chain, power, 0, 1), kMostSchedules);
    if (!best) return;
    for (const auto& [peak, energy] : *best) {
      const EnergyPlan found = plan_for_energy(chain, power, persistent_within(Bytes(peak)));
      ASSERT_TRUE(found.result.plan);
      EXPECT_EQ(found.use.total(), Picojoules(*best_within(*best, peak)));
      EXPECT_TRUE(found.optimal());
      EXPECT_EQ(found.bound_class, "persistent");
      EXPECT_LE(found.use.total(), found.fastest.total());
      EXPECT_EQ(found.use, energy_of(lower(chain), found.result.plan->actions, power));
      EXPECT_TRUE(verify(lower(chain), *found.result.plan, Bytes(peak)).empty());
      ++questions;
      slower += found.use.time > found.fastest.time;
    }
    const Bytes too_small(best->front().peak - 1);
    if (too_small < Bytes(0)) return;
    const EnergyPlan none = plan_for_energy(chain, power, persistent_within(too_small));
    EXPECT_EQ(none.result.termination, Termination::kInfeasible);
    EXPECT_EQ(none.result.smallest_budget, Bytes(best->front().peak));
  });
  EXPECT_GT(questions, 100);
  EXPECT_GT(slower, 0) << "time and energy never differed";
}

// Whatever a unit of energy is worth in time, the best schedule is on the curve.
TEST(EnergyOracle, CurvesHaveTheBestForEveryWeight) {
  int64_t inner = 0;
  for_chains(12, 60, any_chain(3), [&](const Chain& chain, std::mt19937_64& random) {
    const Power power = random_power(random, lower(chain), 100);
    const auto best = persistent_frontier(chain, kMostSchedules);
    if (!best) return;
    const Bytes budget((*best)[random() % best->size()].peak);
    const auto curve = energy_curve(chain, power, persistent_within(budget), 50);
    ASSERT_FALSE(curve.empty());
    inner += curve.size() > 2;
    for (size_t k = 1; k < curve.size(); ++k) {
      EXPECT_LT(curve[k - 1].use.time, curve[k].use.time);
      EXPECT_GT(curve[k - 1].use.total(), curve[k].use.total());
    }
    for (const auto& [by_time, by_energy] : {std::pair<int64_t, int64_t>(1, 0),
                                             {300, 1},
                                             {100, 1},
                                             {30, 1},
                                             {10, 1},
                                             {1, 1},
                                             {0, 1}}) {
      const auto all =
          persistent_frontier(weighted(chain, power, by_time, by_energy), kMostSchedules);
      int64_t least = std::numeric_limits<int64_t>::max();
      for (const EnergyPoint& point : curve) {
        least = std::min(least,
                         by_time * point.use.time.count() + by_energy * point.use.total().count());
      }
      if (all) {
        EXPECT_EQ(least, *best_within(*all, budget.count())) << by_time << ":" << by_energy;
      }
    }
  });
  EXPECT_GT(inner, 0) << "no curve had a point between its ends";
}

TEST(EnergyOracle, TheSamePowerEverywhereIsTime) {
  for_chains(13, 30, any_chain(4), [&](const Chain& chain, std::mt19937_64& random) {
    const Power power{static_cast<int64_t>(random() % 5), 3, 0, {}};
    const PlanOptions options{.budget = "80%", .threads = 1};
    const PlanResult fastest = plan(chain, options);
    const EnergyPlan found = plan_for_energy(chain, power, options);
    ASSERT_EQ(found.result.plan.has_value(), fastest.plan.has_value());
    if (!fastest.plan) return;
    EXPECT_EQ(found.use.time, fastest.plan->time);
    EXPECT_EQ(found.use.total(), Picojoules(fastest.plan->time.count()) * (power.static_mw + 3));
    EXPECT_EQ(energy_curve(chain, power, options).size(), 1u);
  });
}

TEST(EnergyOracle, GraphsNeverTakeMoreThanTheFastestPlan) {
  std::mt19937_64 random(14);
  int64_t less = 0;
  for (int number = 0; number < test_scale(20); ++number) {
    const Graph graph = random_graph(random, {.max_forward = 4});
    const Power power = random_power(random, graph);
    const PlanOptions options{.budget = "90%", .time_limit = kNoTimeLimit, .threads = 1};
    const PlanResult fastest = plan(graph, options);
    const EnergyPlan found = plan_for_energy(graph, power, options);
    SCOPED_TRACE(describe(graph));
    if (!found.result.plan) continue;
    EXPECT_GE(found.use.total(), found.lower_bound);
    EXPECT_LE(found.use.total(), found.fastest.total());
    EXPECT_TRUE(verify(graph, *found.result.plan, found.result.budget).empty());
    if (!fastest.plan) continue;
    less += found.use.total() < energy_of(graph, fastest.plan->actions, power).total();
  }
  EXPECT_GT(less, 0);
}

// Copies that cost much energy are not worth the time that they save.
TEST(EnergyOracle, CopiesAreWeighedAgainstTheirEnergy) {
  Chain chain;
  chain.name = "equal";
  chain.input.bytes = Bytes(100);
  for (int i = 0; i < 8; ++i) {
    chain.stages.push_back({.name = "s" + std::to_string(i),
                            .output = Bytes(100),
                            .output_gradient = {},
                            .weight_gradient = Bytes(0),
                            .forward = {Nanos(100'000), Bytes(0)},
                            .options = {{.name = "keep",
                                         .saved = Bytes(0),
                                         .forward = {Nanos(100'000), Bytes(0)},
                                         .backward = {Nanos(200'000), Bytes(0)}}}});
  }
  PlanOptions options{.budget = Bytes(700), .threads = 1};
  options.machine = parse_offload("host=10MB/s");
  Power power{1000, 2000, 0, {}};
  const EnergyPlan free = plan_for_energy(chain, power, options);
  power.copy_pj_per_byte = 1'000'000'000;
  const EnergyPlan dear = plan_for_energy(chain, power, options);
  ASSERT_TRUE(free.result.plan && dear.result.plan);
  EXPECT_TRUE(moves_values(*free.result.plan));
  EXPECT_FALSE(moves_values(*dear.result.plan));
  EXPECT_EQ(dear.use.copies, Picojoules(0));
  EXPECT_GT(dear.use.time, free.use.time);
  EXPECT_LT(dear.use.total(), dear.fastest.total());
  for (const EnergyPlan& one : {free, dear}) EXPECT_GE(one.use.total(), one.lower_bound);
  const std::vector<EnergyPoint> curve = energy_curve(chain, power, options);
  ASSERT_GE(curve.size(), 2u);
  EXPECT_EQ(curve.front().use.time, free.use.time);
  EXPECT_EQ(curve.back().use, dear.use);
}

}  // namespace
}  // namespace reprise::testing
