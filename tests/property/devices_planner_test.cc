// Tests the planner `devices` on random graphs and machines: never slower than one device, within
// budgets and capacities for any durations, with equal answers to equal questions.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "plan/common/admissible.h"
#include "plan/place/devices/sequence.h"
#include "plan/place/devices/starts.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"
#include "support/planner_questions.h"
#include "support/random_devices.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

template <class Check>
void for_questions(uint64_t seed, int graphs, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < test_scale(graphs); ++number) {
    Machine machine = random_devices(random);
    for (size_t m = 1; m < machine.memories.size(); ++m) {
      if (random() % 3 > 0) {
        machine.memories[m].capacity = Bytes(static_cast<int64_t>(15 + random() % 40));
      }
    }
    const Graph graph = spread(random, random_graph(random, {.max_forward = 4}), machine, 4);
    const Bytes budget(baseline(graph).peak.count() * static_cast<int64_t>(60 + random() % 41) /
                       100);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", graph " + std::to_string(number) + ": " +
                 describe(graph) + to_json(machine) + " " + std::to_string(budget.count()));
    check(graph, machine, budget, random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(DevicesPlanner, NeverSlowerThanOneDeviceAndPlansHold) {
  int64_t plans = 0, spread_out = 0, faster = 0;
  for_questions(
      81, 16,
      [&](const Graph& graph, const Machine& machine, Bytes budget, std::mt19937_64& random) {
        const PlanResult one = plan(graph, on(machine, budget, "graph_levels"));
        const PlanResult all = plan(graph, on(machine, budget, ""));
        ASSERT_EQ(all.planner, internal::common::names_devices(graph) ? "devices" : "graph_levels");
        if (one.plan) {
          ASSERT_TRUE(all.plan);
          ASSERT_LE(all.plan->time, one.plan->time);
        }
        // So is no plan that runs on another device whatever can run there.
        const internal::devices::Ground ground(graph, machine, budget.count());
        for (size_t m = 1; m < machine.memories.size(); ++m) {
          const auto there = internal::devices::evaluate(
              ground, internal::devices::on_device(ground, static_cast<int32_t>(m)));
          if (!there || !there->cost.fits() || !machine.memories[m].computes) continue;
          ASSERT_TRUE(all.plan);
          ASSERT_LE(all.plan->time.count(), there->cost.time);
        }
        if (!all.plan) return;
        ++plans;
        faster += one.plan && all.plan->time < one.plan->time;
        const std::vector<Action>& actions = all.plan->actions;
        const Timeline timeline = simulate(graph, actions, machine);
        spread_out += std::any_of(timeline.steps.begin(), timeline.steps.end(),
                                  [](const TimelineStep& step) { return step.device > 0; });
        for (int timing = 0; timing < 5; ++timing) {
          const auto duration = [&](size_t, int64_t usual) {
            return static_cast<int64_t>(random() % static_cast<uint64_t>(8 * usual + 8));
          };
          const EventResult events = run_events(graph, machine, actions, duration);
          ASSERT_LE(events.peaks[0], budget.count());
          for (size_t m = 1; m < machine.memories.size(); ++m) {
            const auto& capacity = machine.memories[m].capacity;
            if (!capacity) continue;
            ASSERT_LE(events.peaks[m], capacity->count());
          }
        }
      });
  EXPECT_GT(plans, test_scale(16) / 2);
  EXPECT_GT(spread_out, plans / 2);
  EXPECT_GT(faster, plans / 3);
}

TEST(DevicesPlanner, EqualQuestionsHaveEqualAnswers) {
  for_questions(82, 3,
                [&](const Graph& graph, const Machine& machine, Bytes budget, std::mt19937_64&) {
                  const PlanResult first = plan(graph, on(machine, budget, "devices"));
                  const PlanResult second = plan(graph, on(machine, budget, "devices"));
                  ASSERT_EQ(first.plan.has_value(), second.plan.has_value());
                  if (!first.plan) return;
                  ASSERT_EQ(first.plan->actions, second.plan->actions);
                });
}

// Without the machine, or with another planner, the variants of other devices are not there.
TEST(DevicesPlanner, OtherPlannersSeeTheFirstDevice) {
  for_questions(83, 3, [&](const Graph& graph, const Machine& machine, Bytes, std::mt19937_64&) {
    Graph first = graph;
    for (Op& op : first.ops) {
      std::erase_if(op.variants, [](const Variant& variant) { return !variant.at.empty(); });
    }
    const Bytes budget = baseline(first).peak;
    ASSERT_EQ(baseline(graph), baseline(first));
    for (const char* planner : {"graph", "keep_all", "dtr"}) {
      const PlanResult of_all = plan(graph, on({}, budget, planner));
      const PlanResult of_first = plan(first, on({}, budget, planner));
      ASSERT_EQ(of_all.plan.has_value(), of_first.plan.has_value());
      if (!of_all.plan) continue;
      ASSERT_EQ(of_all.plan->actions, of_first.plan->actions);
    }
    ASSERT_EQ(plan(graph, on(machine, budget, "graph_levels")).plan->actions,
              plan(first, on(machine, budget, "graph_levels")).plan->actions);
  });
}

// A layout is exact: what it says about bytes and times is what the simulator and the judge say.
TEST(DevicesPlanner, LayoutsAreValidPlans) {
  int64_t possible = 0, within = 0;
  for_questions(
      84, 300,
      [&](const Graph& graph, const Machine& machine, Bytes budget, std::mt19937_64& random) {
        const internal::devices::Ground ground(graph, machine, budget.count());
        internal::devices::Sequence runs = random_runs(random, graph, 6);
        for (reprise::Run& run : runs) {
          const auto device = static_cast<int32_t>(random() % machine.memories.size());
          const int32_t twin = internal::devices::twin_on(ground, run, device);
          if (twin >= 0) run.variant = twin;
        }
        const internal::devices::Layout layout =
            internal::devices::lay_out(ground, runs, random() % 2 == 0);
        if (!layout.possible) return;
        ++possible;
        Plan plan;
        plan.actions = with_names(ground.graph, layout.actions, ground.machine);
        ASSERT_EQ(reprise::bind(graph, plan.actions, machine), layout.actions);
        bool over = false;
        for (const Violation& violation : verify(graph, plan, budget, machine)) {
          over = over || violation.kind == ViolationKind::kOverBudget;
          ASSERT_TRUE(violation.kind == ViolationKind::kFalseClaim ||
                      violation.kind == ViolationKind::kOverBudget)
              << violation.message;
        }
        ASSERT_EQ(over, layout.excess > 0) << describe(plan.actions);
        within += !over;
      });
  EXPECT_GT(possible, test_scale(300) / 2);
  EXPECT_GT(within, possible / 4);
}

}  // namespace
}  // namespace reprise::testing
