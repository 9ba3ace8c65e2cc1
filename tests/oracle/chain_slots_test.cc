// Compares the slot tables with the exact recurrence, cell by cell, and the planner built on them
// with the exact planner.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "plan/chain_slots/table.h"
#include "plan/common/search_control.h"
#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/example_chain.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/refusal.h"

namespace reprise::testing {
namespace {

using internal::chain::kInfeasible;

// Makes sizes and times that no unit divides.
RandomChainOptions uneven(RandomChainOptions options) {
  options.max_size = 100'003;
  options.max_time = 1'000'003;
  return options;
}

// Repeats some stages, so that there is something to share.
Chain with_equal_stages(Chain chain) {
  const std::vector<Stage> block = chain.stages;
  chain.stages.insert(chain.stages.begin(), block.begin(), block.end());
  return chain;
}

struct Tables {
  const internal::chain::ChainModel& model;
  const internal::chain::ChainCells& cells;
  const internal::chain::CurveTable& exact;
  const internal::chain_slots::SlotTable& upper;
  const internal::chain_slots::SlotTable& lower;
  int64_t largest_cost;
};

// The lower table is at most the exact one, and this is at most the upper table.
void expect_between(const Tables& tables, const internal::chain::Cell& cell, int64_t m) {
  const int64_t exact = internal::chain::cost_at(tables.exact.curve(cell.slot), m);
  const int64_t upper = tables.upper.cost(cell, m);
  const int64_t lower = tables.lower.cost(cell, m);
  if (exact == kInfeasible) {
    EXPECT_EQ(upper, kInfeasible);
    return;
  }
  // A cell that costs more than any plan of interest counts as infeasible.
  if (exact <= tables.largest_cost) {
    EXPECT_LE(lower, exact);
  }
  if (upper != kInfeasible) {
    EXPECT_GE(tables.model.time_of(upper), tables.model.time_of(exact));
  }
}

void expect_bounds(const Chain& chain, int64_t slots, bool shared, std::mt19937_64& random) {
  const internal::chain::ChainModel model = internal::chain::make_model(chain);
  const internal::chain::ChainCells cells(model, shared);
  internal::common::SearchControl control(PlanOptions{}, "test");
  const internal::chain::CurveTable exact(model, cells, {}, control);
  const internal::chain::CurveView root = exact.curve(cells.slot(0, model.stages, true));
  const int64_t span = root.back().memory - root.front().memory + 1;
  const int64_t memory =
      root.front().memory + static_cast<int64_t>(random() % static_cast<uint64_t>(span));
  const internal::chain_slots::SlotLimits limits{memory, slots, root.front().cost, shared, 2};
  const internal::chain_slots::SlotTable upper(model, cells, limits,
                                               internal::chain_slots::Rounding::kUp, control);
  const internal::chain_slots::SlotTable lower(model, cells, limits,
                                               internal::chain_slots::Rounding::kDown, control);
  ASSERT_TRUE(upper.complete() && lower.complete());
  const Tables tables{model, cells, exact, upper, lower, limits.largest_cost};
  for (const internal::chain::Cell& cell : cells.order()) {
    const int64_t cap = cell.first == 0 ? memory : memory - model.x[cell.first];
    SCOPED_TRACE("cell " + std::to_string(cell.first) + ".." + std::to_string(cell.last));
    for (int draw = 0; draw < 8 && cap > 0; ++draw) {
      expect_between(tables, cell, static_cast<int64_t>(random() % static_cast<uint64_t>(cap + 1)));
    }
    if (cap >= 0) expect_between(tables, cell, cap);
  }
}

TEST(ChainSlots, TablesBoundEveryCellFromBothSides) {
  for (const bool dominant : {false, true}) {
    RandomChainOptions options = uneven(any_chain(6));
    options.dominant_workspaces = dominant;
    for_chains(31, 60, options, [](const Chain& chain, std::mt19937_64& random) {
      for (const int64_t slots : {1, 7, 40, 300}) {
        SCOPED_TRACE(std::to_string(slots) + " slots");
        expect_bounds(chain, slots, false, random);
        expect_bounds(with_equal_stages(chain), slots, true, random);
      }
    });
  }
}

// The lengths are around multiples of a tile's side.
TEST(ChainSlots, TilesAndThreadsChangeNothing) {
  RandomChainOptions options = uneven(one_option(41));
  for (const int stages : {7, 8, 9, 16, 41}) {
    options.min_stages = options.max_stages = stages;
    for_chains(35, 2, options, [](const Chain& chain, std::mt19937_64& random) {
      const internal::chain::ChainModel model = internal::chain::make_model(chain);
      const internal::chain::ChainCells cells(model, /*share=*/false);
      internal::common::SearchControl control(PlanOptions{}, "test");
      const int64_t memory = baseline(lower(chain)).peak.count() / 2;
      for (const auto rounding :
           {internal::chain_slots::Rounding::kUp, internal::chain_slots::Rounding::kDown}) {
        internal::chain_slots::SlotLimits limits{memory, 90, model.least_sweeps.back() * 2,
                                                 false,  1,  false};
        const internal::chain_slots::SlotTable expected(model, cells, limits, rounding, control);
        limits.tiles = true;
        for (const int threads : {1, 2, 4}) {
          limits.threads = threads;
          const internal::chain_slots::SlotTable table(model, cells, limits, rounding, control);
          ASSERT_TRUE(table.complete());
          EXPECT_EQ(table.memory(), expected.memory());
          for (const internal::chain::Cell& cell : cells.order()) {
            for (int draw = 0; draw < 4; ++draw) {
              const auto m = static_cast<int64_t>(random() % static_cast<uint64_t>(memory));
              ASSERT_EQ(table.cost(cell, m), expected.cost(cell, m))
                  << cell.first << ".." << cell.last << " at " << m;
            }
          }
        }
      }
    });
  }
}

TEST(ChainSlots, BoundAndPlanEncloseTheExactOptimum) {
  int proven = 0, compared = 0;
  for (const RandomChainOptions& options : {any_chain(8), uneven(any_chain(14))}) {
    for_chains(32, 60, options, [&](const Chain& chain, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(lower(chain)).peak.count());
      for (int draw = 0; draw < 4; ++draw) {
        const Bytes budget(static_cast<int64_t>(random() % (plain + 2)));
        SCOPED_TRACE("budget " + std::to_string(budget.count()));
        PlanOptions persistent = with("chain", budget);
        persistent.schedule_class = "persistent";
        const PlanResult exact = plan(chain, persistent);
        const PlanResult slots = plan(chain, with("chain_slots", budget));
        ASSERT_EQ(found(exact), found(slots));
        EXPECT_EQ(exact.smallest_budget, slots.smallest_budget);
        if (!found(exact)) continue;
        EXPECT_LE(slots.lower_bound, exact.plan->time);
        EXPECT_GE(slots.plan->time, exact.plan->time);
        EXPECT_LE(slots.plan->peak, budget);
        ++compared;
        proven += slots.termination == Termination::kOptimal;
      }
    });
  }
  EXPECT_GT(proven, compared / 4);
}

// Any number of slots may be asked for. Few slots leave a gap, and many close it.
TEST(ChainSlots, TheNumberOfSlotsIsAnOption) {
  int64_t few = 0, many = 0;
  for_chains(36, 20, uneven(any_chain(14)), [&](const Chain& chain, std::mt19937_64&) {
    PlanOptions ask = with("chain_slots", Bytes());
    ask.budget = "70%";
    PlanOptions exact = ask;
    exact.planner = "chain";
    exact.schedule_class = "persistent";
    const PlanResult best = plan(chain, exact);
    if (!found(best)) return;
    for (const int slots : {1, 20, 4000}) {
      ask.slots = slots;
      const PlanResult result = plan(chain, ask);
      ASSERT_TRUE(found(result));
      EXPECT_LE(result.lower_bound, best.plan->time) << slots << " slots";
      EXPECT_GE(result.plan->time, best.plan->time) << slots << " slots";
      const int64_t gap = (result.plan->time - result.lower_bound).count();
      (slots == 4000 ? many : few) += gap;
    }
  });
  EXPECT_LT(10 * many, few);
}

TEST(ChainSlots, OnlyPlannersWithSlotsTakeTheirNumber) {
  const Chain chain = example_chain();
  expect_refusal([&] { plan(chain, {.planner = "chain", .slots = 500}); }, "has no slots");
  expect_refusal([&] { plan(chain, {.slots = 500}); }, "these have: chain_slots");
  expect_refusal([&] { plan(chain, {.planner = "chain_slots", .slots = -1}); },
                 "slots is negative");
}

// Sizes are a few bytes, so the grid's unit divides them all, and nothing is rounded.
TEST(ChainSlots, IsExactWhereNothingIsRounded) {
  for_chains(33, 60, any_chain(10), [](const Chain& chain, std::mt19937_64& random) {
    const auto plain = static_cast<uint64_t>(baseline(lower(chain)).peak.count());
    const Bytes budget(static_cast<int64_t>(random() % (plain + 2)));
    const PlanResult slots = plan(chain, with("chain_slots", budget));
    if (found(slots)) {
      EXPECT_EQ(slots.termination, Termination::kOptimal);
    }
  });
}

Chain long_chain(uint64_t seed, int stages) {
  RandomChainOptions options = uneven(any_chain(stages));
  options.min_stages = stages;
  std::mt19937_64 random(seed);
  return random_chain(random, options);
}

TEST(ChainSlots, ThreadsChangeNothing) {
  const Chain chain = long_chain(34, 40);
  PlanOptions ask = with("chain_slots", Bytes());
  ask.budget = "60%";
  ask.threads = 1;
  const PlanResult one = plan(chain, ask);
  ASSERT_TRUE(found(one));
  for (const int threads : {0, 2, 4}) {
    ask.threads = threads;
    const PlanResult many = plan(chain, ask);
    EXPECT_EQ(many.plan->actions, one.plan->actions);
    EXPECT_EQ(many.lower_bound, one.lower_bound);
    EXPECT_EQ(many.search.memory, one.search.memory);
  }
}

// The budget is all memory of plain training, and each stage has one option. Keeping everything
// then falls on points of the grid, however few there are.
TEST(ChainSlots, FindsPlainTraining) {
  for_chains(35, 40, uneven(one_option(30)), [](const Chain& chain, std::mt19937_64&) {
    const PlanResult result = plan(chain, with("chain_slots", baseline(lower(chain)).peak));
    ASSERT_TRUE(result.plan.has_value());
    EXPECT_EQ(result.plan->time, result.baseline.time);
    EXPECT_EQ(result.termination, Termination::kOptimal);
  });
}

TEST(ChainSlots, OutOfTimeStillHasAPlanWithinTheBudget) {
  const Chain chain = long_chain(36, 150);
  for (const int64_t limit : {0, 1'000'000, 20'000'000, 100'000'000}) {
    PlanOptions ask = with("chain_slots", Bytes());
    ask.budget = "60%";
    ask.time_limit = Nanos(limit);
    const PlanResult result = plan(chain, ask);
    ASSERT_TRUE(found(result)) << limit;
    EXPECT_LE(result.plan->peak, result.budget);
  }
}

}  // namespace
}  // namespace reprise::testing
