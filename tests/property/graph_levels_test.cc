// Tests the planner `graph_levels` on random graphs and machines: never slower than recomputing
// alone or moving alone, within budgets and capacities for any durations, with bounds that hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "plan/common/search_control.h"
#include "plan/graph/bound/with_copies.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/place/flow.h"
#include "plan/place/graph_levels/improve.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"
#include "support/graph_families.h"
#include "support/planner_questions.h"
#include "support/random_copies.h"

namespace reprise::testing {
namespace {

using internal::bound::bound_with_copies;
using internal::common::SearchControl;
using internal::graph_levels::Candidate;
using internal::graph_levels::evaluate;
using internal::graph_levels::lanes_for_long_gaps;
using internal::graph_levels::movable_intervals;
using internal::graph_levels::Workbench;

Machine machine_with_capacities(std::mt19937_64& random) {
  Machine machine = random_machine(random);
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    if (random() % 3 == 0) {
      machine.memories[m].capacity = Bytes(static_cast<int64_t>(random() % 40));
    }
  }
  return machine;
}

template <class Check>
void for_questions(int graphs, const Check& check) {
  for (GraphFamily family : graph_families()) {
    family.graphs = graphs;
    family.seed += 700;
    for_graphs(family, [&](const Graph& graph, std::mt19937_64& random) {
      const Machine machine = machine_with_capacities(random);
      SCOPED_TRACE(to_json(machine));
      SearchControl control = SearchControl({}, "test").untimed();
      const int64_t plain = baseline(graph).peak.count();
      const int64_t least = bound_with_copies(graph, Bytes(0), machine, control).least_peak.count();
      const auto share = static_cast<int64_t>(random() % 100);
      const Bytes budget(least + std::max<int64_t>(0, plain - least) * share / 100);
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      check(graph, machine, budget, random);
    });
  }
}

// Returns plain training in which everything moves for which there is time, or nothing if it does
// not fit.
std::optional<Candidate> moving_alone(const Graph& graph, const Machine& machine, Bytes budget) {
  const internal::schedule::ScheduleModel model(graph);
  const internal::search::ScheduleMoves changes(model);
  const internal::place::LaneTimes lane_times(graph, machine);
  const Workbench bench{model,
                        changes,
                        lane_times,
                        movable_intervals(model, true),
                        movable_intervals(model, false),
                        budget.count(),
                        1};
  const auto candidate = evaluate(bench, {model.lean(), lanes_for_long_gaps(bench)});
  return candidate && candidate->cost.fits() ? candidate : std::nullopt;
}

TEST(GraphLevels, NeverSlowerThanRecomputingOrMovingAndPlansHold) {
  int64_t moved = 0, faster = 0, only_by_moving = 0, compared = 0;
  for_questions(
      5, [&](const Graph& graph, const Machine& machine, Bytes budget, std::mt19937_64& random) {
        const PlanResult alone = plan(graph, on({}, budget));
        const PlanResult result = plan(graph, on(machine, budget));
        ASSERT_EQ(result.planner, "graph_levels");
        ASSERT_EQ(alone.planner, "graph");
        const auto moving = moving_alone(graph, machine, budget);
        if (!result.plan) {
          ASSERT_FALSE(alone.plan || moving);
          ASSERT_TRUE(result.smallest_budget);
          ASSERT_GT(*result.smallest_budget, budget);
          return;
        }
        const Plan& found = *result.plan;
        const std::vector<Violation> violations =
            verify(graph, found, budget, problem_id(graph), machine);
        ASSERT_TRUE(violations.empty()) << violations.front().message;
        ASSERT_EQ(run_events(graph, machine, found.actions).time, found.time.count());
        ASSERT_LE(result.lower_bound, found.time);
        if (moving) {
          ASSERT_LE(found.time.count(), moving->cost.time);
          ++compared;
        }
        moved += moves_values(found);
        only_by_moving += !alone.plan;
        if (alone.plan) {
          ASSERT_LE(found.time, alone.plan->time);
          faster += found.time < alone.plan->time;
          ASSERT_LE(result.lower_bound, alone.plan->time);
        }
        for (int timing = 0; timing < 5; ++timing) {
          const EventResult late =
              run_events(graph, machine, found.actions, [&](size_t, int64_t usual) {
                return usual * static_cast<int64_t>(random() % 40) / 8;
              });
          ASSERT_LE(late.peaks[0], budget.count());
          for (size_t m = 1; m < machine.memories.size(); ++m) {
            if (machine.memories[m].capacity) {
              ASSERT_LE(late.peaks[m], machine.memories[m].capacity->count());
            }
          }
        }
      });
  std::cout << "compared with moving alone " << compared << ", moved " << moved
            << ", faster than recomputing " << faster << ", possible only by moving "
            << only_by_moving << "\n";
  EXPECT_GT(compared, 4);
  EXPECT_GT(moved, 10);
  EXPECT_GT(faster, 2);
  EXPECT_GT(only_by_moving, 3);
}

// The peak that a flow counts is that of its plan, and so is the time.
TEST(GraphLevels, AFlowCostsWhatItsPlanCosts) {
  int64_t moved = 0;
  for_questions(
      40, [&](const Graph& graph, const Machine& machine, Bytes budget, std::mt19937_64& random) {
        const internal::schedule::ScheduleModel model(graph);
        const internal::place::LaneTimes lane_times(graph, machine);
        internal::schedule::ScheduleLedger ledger(model);
        internal::schedule::Schedule schedule = model.lean();
        for (size_t g = 0; g < schedule.intervals.size(); ++g) {
          if (model.intervals()[g].must_keep) continue;
          schedule.intervals[g] = static_cast<internal::schedule::Keeping>(random() % 3);
        }
        if (lane_times.lanes().empty() || !ledger.assign(schedule)) return;
        std::vector<int8_t> lanes(model.intervals().size());
        for (int8_t& lane : lanes) {
          lane = static_cast<int8_t>(random() % (lane_times.lanes().size() + 1)) - 1;
        }
        internal::place::RunList runs;
        ledger.list(runs.op_variants, runs.positions);
        internal::place::Flow flow(model, lane_times);
        const auto cost = flow.build(runs, lanes, budget.count());
        const std::vector<Action> actions = flow.actions();
        const Timeline timeline = simulate(graph, actions, machine);
        ASSERT_EQ(timeline.time.count(), cost.time);
        ASSERT_LE(timeline.peak.count(), std::max(cost.peak, budget.count()));
        if (cost.peak > budget.count()) {
          ASSERT_EQ(timeline.peak.count(), cost.peak);
        }
        ASSERT_EQ(run_events(graph, machine, actions).time, cost.time);
        for (size_t m = 1; m < machine.memories.size(); ++m) {
          if (machine.memories[m].capacity) {
            ASSERT_LE(timeline.peaks[m], *machine.memories[m].capacity);
          }
        }
        moved += flow.moves();
      });
  EXPECT_GT(moved, 50);
}

// More memory and faster channels never raise the bound.
TEST(GraphLevels, BoundsAreMonotone) {
  int64_t raised = 0;
  for_questions(6, [&](const Graph& graph, Machine machine, Bytes, std::mt19937_64&) {
    SearchControl control = SearchControl({}, "test").untimed();
    const int64_t plain = baseline(graph).peak.count();
    Nanos before(INT64_MAX);
    for (int64_t share = 20; share <= 100; share += 20) {
      const Bytes budget(plain * share / 100);
      const auto bound = bound_with_copies(graph, budget, machine, control);
      if (bound.least_peak > budget) continue;
      // The search for shares ends where no neighbour is better, which need not be the very best.
      ASSERT_LE(bound.time.count() * 95, std::min(before.count(), INT64_MAX / 100) * 100);
      before = std::min(before, bound.time);
      raised += bound.time > bound_with_copies(graph, Bytes(10 * plain), machine, control).time;
    }
  });
  EXPECT_GT(raised, 10);
}

TEST(GraphLevels, TheSameQuestionHasTheSamePlan) {
  for_questions(1, [&](const Graph& graph, const Machine& machine, Bytes budget, std::mt19937_64&) {
    PlanOptions options = on(machine, budget);
    const PlanResult one = plan(graph, options), two = plan(graph, options);
    options.threads = 3;
    const PlanResult three = plan(graph, options);
    ASSERT_EQ(one.plan.has_value(), two.plan.has_value());
    if (!one.plan) return;
    EXPECT_EQ(one.plan->actions, two.plan->actions);
    EXPECT_EQ(one.plan->actions, three.plan->actions);
    EXPECT_EQ(one.lower_bound, three.lower_bound);
  });
}

// A search on all 50 stages would take half a minute.
Chain small_chain() {
  Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  chain.stages.resize(12);
  return chain;
}

PlanOptions at_half(const Machine& machine) {
  PlanOptions options = on(machine, Bytes(0));
  options.budget = "50%";
  return options;
}

TEST(GraphLevels, AFastChannelMakesEveryBudgetFree) {
  const Graph graph = lower(small_chain());
  const PlanResult result = plan(graph, at_half(parse_offload("host=100GB/s")));
  ASSERT_TRUE(result.plan);
  EXPECT_EQ(result.termination, Termination::kOptimal);
  EXPECT_EQ(result.plan->time, result.baseline.time);
}

TEST(GraphLevels, AMemoryWithoutRoomIsNoHelp) {
  const Graph graph = lower(small_chain());
  Machine machine = parse_offload("host=100GB/s");
  machine.memories[1].capacity = Bytes(0);
  const PlanResult result = plan(graph, at_half(machine));
  ASSERT_TRUE(result.plan);
  EXPECT_FALSE(moves_values(*result.plan));
  EXPECT_GT(result.plan->time, result.baseline.time);
}

TEST(GraphLevels, AMachineWithoutAWayBackIsNoHelp) {
  const Graph graph = lower(small_chain());
  Machine machine = parse_offload("host=100GB/s");
  machine.channels.pop_back();
  const PlanResult result = plan(graph, at_half(machine));
  ASSERT_TRUE(result.plan);
  EXPECT_FALSE(moves_values(*result.plan));
  EXPECT_EQ(result.schedule_class, "all");
}

TEST(GraphLevels, JoinsMoveValuesToo) {
  const Join join = load_join(REPRISE_SOURCE_DIR "/data/instances/joins/siamese.json");
  PlanOptions options = on(parse_offload("host=100GB/s"), Bytes(0));
  options.budget = "70%";
  const PlanResult result = plan(join, options);
  EXPECT_EQ(result.planner, "graph_levels");
  ASSERT_TRUE(result.plan);
  EXPECT_TRUE(moves_values(*result.plan));
  EXPECT_TRUE(
      verify(lower(join), *result.plan, result.budget, problem_id(join), options.machine).empty());
}

TEST(GraphLevels, LeavesAReserveWhereThatIsPossible) {
  const Graph graph = lower(small_chain());
  PlanOptions options = at_half(parse_offload("host=1GB/s"));
  options.reserve = Bytes(1'000'000);
  const PlanResult result = plan(graph, options);
  ASSERT_TRUE(result.plan);
  EXPECT_LE(result.plan->peak, result.budget - options.reserve);
  EXPECT_EQ(result.budget, Budget("50%").resolve(baseline(graph).peak));
}

TEST(GraphLevels, ExceptionsOfTheObserverPassThrough) {
  struct Stop {};
  PlanOptions options = at_half(parse_offload("host=0.1GB/s"));
  options.observer = [](const Progress& progress) {
    if (progress.message == "graph_levels") throw Stop{};
  };
  EXPECT_THROW(plan(lower(small_chain()), options), Stop);
}

}  // namespace
}  // namespace reprise::testing
