// Tests values that live in other memories between steps: every account of a plan agrees, plans
// keep to their budgets for any durations, and what an op changes is at home in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/plan/plan.h"
#include "reprise/run/bookkeeping.h"
#include "support/event_machine.h"
#include "support/random_copies.h"
#include "support/random_graph.h"
#include "support/scale.h"
#include "support/with_state.h"

namespace reprise::testing {
namespace {

constexpr ActionKind kRun = ActionKind::kRun, kFree = ActionKind::kFree, kCopy = ActionKind::kCopy,
                     kWait = ActionKind::kWait;

PlanOptions soon_on(const Machine& machine, Bytes budget) {
  return {.budget = budget, .time_limit = Nanos(10'000'000), .threads = 1, .machine = machine};
}

// Plans random steps within random budgets, and calls check(graph, machine, plan, random).
template <class Check>
void for_plans(uint64_t seed, int count, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < test_scale(count); ++number) {
    const Machine machine = random_machine(random);
    const Graph graph = with_state(random, random_graph(random, {.max_forward = 4}), machine);
    SCOPED_TRACE("graph " + std::to_string(number) + ": " + describe(graph) + to_json(machine));
    const Bytes plain = baseline(graph).peak;
    const PlanResult none = plan(graph, soon_on(machine, graph.fixed));
    const int64_t least =
        none.plan ? graph.fixed.count() : none.smallest_budget.value_or(plain).count();
    const int64_t more = std::max<int64_t>(0, plain.count() - least);
    const Bytes budget(least + static_cast<int64_t>(random() % static_cast<uint64_t>(more + 1)));
    const PlanResult result = plan(graph, soon_on(machine, budget));
    if (!result.plan) continue;
    check(graph, machine, *result.plan, random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Homes, EveryAccountOfAPlanAgrees) {
  int64_t plans = 0, copies = 0;
  for_plans(
      51, 150, [&](const Graph& graph, const Machine& machine, const Plan& plan, std::mt19937_64&) {
        ASSERT_TRUE(verify(graph, plan, plan.budget, machine).empty());
        ASSERT_LE(plan.peak, plan.budget);
        ASSERT_GE(plan.time, plan.lower_bound);
        const Timeline timeline = simulate(graph, plan.actions, machine);
        const EventResult events = run_events(graph, machine, plan.actions);
        ASSERT_EQ(events.time, timeline.time.count());
        const Graph placed = as_placed(graph, plan.actions).value_or(graph);
        BookkeepingBackend backend(placed, &machine);
        execute(Program(graph, plan.actions, machine), backend);
        ASSERT_EQ(backend.time(), timeline.time);
        ASSERT_EQ(backend.peak(), timeline.peak);
        for (size_t m = 1; m < machine.memories.size(); ++m) {
          ASSERT_EQ(backend.peak(static_cast<int32_t>(m)), timeline.peaks[m]);
          ASSERT_LE(events.peaks[m], timeline.peaks[m].count());
        }
        ASSERT_EQ(live_bytes(plan_blocks(graph, plan.actions, machine), Bytes(1)) + graph.fixed,
                  timeline.peak);
        const Explanation explanation = explain(graph, plan, machine);
        Bytes held;
        for (const Holder& holder : explanation.holders) held += holder.bytes;
        ASSERT_EQ(held, timeline.peak);
        ++plans;
        copies += static_cast<int64_t>(timeline.transfers.size());
      });
  EXPECT_GT(plans, 100);
  EXPECT_GT(copies, 250);
}

TEST(Homes, BytesHoldForAnyDurations) {
  int64_t timings = 0;
  for_plans(
      52, 60,
      [&](const Graph& graph, const Machine& machine, const Plan& plan, std::mt19937_64& random) {
        for (int timing = 0; timing < 20; ++timing) {
          const double scale = std::exp2(static_cast<double>(random() % 9) - 4);
          const auto duration = [&](size_t action, int64_t usual) {
            const double noise = std::exp(static_cast<double>(random() % 1000) / 125 - 4);
            const double copy = plan.actions[action].kind == kCopy ? scale : 1;
            return static_cast<int64_t>(noise * copy * static_cast<double>(usual + 1));
          };
          const EventResult events = run_events(graph, machine, plan.actions, duration);
          ASSERT_LE(events.peaks[0], plan.budget.count());
          ++timings;
        }
      });
  EXPECT_GT(timings, 800);
}

// An action that is taken away, or put elsewhere, is noticed, or the plan still holds.
TEST(Homes, DamagedPlansAreRefusedOrStillHold) {
  int64_t refused = 0, accepted = 0;
  for_plans(53, 150,
            [&](const Graph& graph, const Machine& machine, Plan plan, std::mt19937_64& random) {
              if (plan.actions.empty()) return;
              std::vector<Action>& actions = plan.actions;
              const size_t from = random() % actions.size();
              const Action moved = actions[from];
              actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
              if (random() % 2 == 0) {
                const auto to = static_cast<std::ptrdiff_t>(random() % (actions.size() + 1));
                actions.insert(actions.begin() + to, moved);
              }
              for (Action& action : actions) action.after.clear();
              const std::vector<Violation> found = verify(graph, plan, plan.budget, machine);
              const bool valid = std::all_of(found.begin(), found.end(), [](const Violation& one) {
                return one.kind == ViolationKind::kFalseClaim;
              });
              ++(valid ? accepted : refused);
              if (!valid) return;
              const Timeline timeline = simulate(graph, actions, machine);
              ASSERT_EQ(run_events(graph, machine, actions).time, timeline.time.count());
              const auto any = [&](size_t, int64_t usual) {
                return static_cast<int64_t>(random() % static_cast<uint64_t>(8 * usual + 8));
              };
              for (int timing = 0; timing < 5; ++timing) {
                ASSERT_LE(run_events(graph, machine, actions, any).peaks[0], timeline.peak.count());
              }
            });
  EXPECT_GT(refused, 50);
  EXPECT_GT(accepted, 5);
}

TEST(Homes, FilesKeepThem) {
  std::mt19937_64 random(54);
  for (int number = 0; number < 50; ++number) {
    const Graph graph = with_state(random, random_graph(random), parse_offload("disk=1GB/s"));
    EXPECT_EQ(parse_graph(to_json(graph)), graph);
    EXPECT_EQ(to_json(graph).find("\"version\": 3") != std::string::npos, has_homes(graph));
    EXPECT_EQ(baseline(graph), baseline(with_all_on_device(graph)));
  }
}

// TwoUpdates has two updates. Each reads a gradient, and state on a disk that it changes.
struct TwoUpdates {
  Graph graph;
  Machine machine = parse_offload("disk=1GB/s");  // a byte a nanosecond
  std::vector<Action> actions;

  TwoUpdates() {
    machine.channels[0].latency = machine.channels[1].latency = Nanos(0);
    graph.name = "updates";
    graph.values = {{"g1", Bytes(10)},
                    {"g2", Bytes(10)},
                    {"s1", Bytes(100), ValueKind::kInput, "disk"},
                    {"s2", Bytes(100), ValueKind::kInput, "disk"},
                    {"t1", Bytes(100), ValueKind::kState, "disk"},
                    {"t2", Bytes(100), ValueKind::kState, "disk"}};
    add("back1", 1000, {}, {0}, {});
    add("update1", 10, {0, 2}, {4}, {{4, 2}});
    add("back2", 1000, {}, {1}, {});
    add("update2", 10, {1, 3}, {5}, {{5, 3}});
    graph.results = {4, 5};
    actions = {{kRun, "back1", "default"},          {kCopy, "s1", "", "disk", "device"},
               {kWait, "s1", "", "device"},         {kRun, "update1", "default"},
               {kCopy, "t1", "", "device", "disk"}, {kFree, "g1", ""},
               {kWait, "t1", "", "disk"},           {kFree, "t1", ""},
               {kRun, "back2", "default"},          {kCopy, "s2", "", "disk", "device"},
               {kWait, "s2", "", "device"},         {kRun, "update2", "default"},
               {kCopy, "t2", "", "device", "disk"}, {kFree, "g2", ""},
               {kWait, "t2", "", "disk"},           {kFree, "t2", ""}};
  }

  void add(const char* id, int64_t time, std::vector<ValueIndex> reads,
           std::vector<ValueIndex> writes, std::vector<std::pair<ValueIndex, ValueIndex>> reuses) {
    Variant variant;
    variant.time = Nanos(time);
    variant.reads = std::move(reads);
    variant.writes = std::move(writes);
    variant.reuses = std::move(reuses);
    graph.ops.push_back({.id = id, .phase = Phase::kBackward, .once = true, .variants = {variant}});
  }

  // Without the action at this position, and with another one in its place.
  std::vector<ViolationKind> broken(size_t at, std::optional<Action> instead = {}) const {
    Plan plan;
    plan.budget = Bytes(1000);
    plan.actions = actions;
    if (instead) {
      plan.actions[at] = *instead;
    } else {
      plan.actions.erase(plan.actions.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::vector<ViolationKind> kinds;
    for (const Violation& violation : verify(graph, plan, plan.budget, machine)) {
      if (violation.kind != ViolationKind::kFalseClaim) kinds.push_back(violation.kind);
    }
    return kinds;
  }
};

TEST(Homes, StateIsReadFromHomeAndWrittenBack) {
  const TwoUpdates step;
  const Timeline timeline = simulate(step.graph, step.actions, step.machine);
  EXPECT_EQ(timeline.peak, Bytes(110));
  EXPECT_EQ(timeline.peaks[1], Bytes(400)) << "the old state stays until the end";
  EXPECT_EQ(timeline.time, Nanos(2 * (1000 + 100 + 10 + 100)));
  EXPECT_EQ(baseline(step.graph).peak, Bytes(210)) << "plain training has both states at once";
  EXPECT_EQ(baseline(step.graph).time, Nanos(2020));

  using K = ViolationKind;
  EXPECT_EQ(step.broken(1).front(), K::kNotLive) << "waits for what does not come";
  EXPECT_EQ(step.broken(2).front(), K::kUnderWay);
  EXPECT_EQ(step.broken(12).back(), K::kMissingResult) << "the new state is not written back";
  EXPECT_EQ(step.broken(14).front(), K::kUnderWay);
  EXPECT_EQ(step.broken(15), std::vector<K>{K::kLeftOver});
  EXPECT_EQ(step.broken(14, Action{kFree, "s2", "", "disk"}).front(), K::kInputFreed);
  EXPECT_EQ(step.broken(9, Action{kFree, "s2", ""}).front(), K::kNotLive);
  Machine small = step.machine;
  small.memories[1].capacity = Bytes(399);
  Plan plan;
  plan.actions = step.actions;
  EXPECT_EQ(verify(step.graph, plan, Bytes(1000), small).front().kind, K::kOverBudget);
}

// Where only one of the states has room, the copies stand one after the other; with more room they stand
// behind the runs, and what no run stands behind stays.
TEST(Homes, CopiesStandBehindTheRunsWhereTheBytesAllow) {
  const TwoUpdates step;
  const auto planned = [&](int64_t budget) {
    return plan(step.graph, soon_on(step.machine, Bytes(budget)));
  };
  const auto staying = [&](const PlanResult& result) {
    const std::vector<char> stays = stays_on_device(step.graph, result.plan->actions);
    return std::count(stays.begin(), stays.end(), 1);
  };
  const PlanResult tight = planned(110);
  ASSERT_TRUE(tight.plan);
  EXPECT_LE(tight.plan->peak, Bytes(110));
  EXPECT_EQ(staying(tight), 0);
  const PlanResult wide = planned(210);
  ASSERT_TRUE(wide.plan);
  EXPECT_EQ(wide.plan->time, Nanos(2020));
  EXPECT_EQ(staying(wide), 2) << "the last state stays, and the first has runs beside its copies";
  EXPECT_EQ(wide.plan->termination, Termination::kOptimal);
  const PlanResult none = planned(109);
  EXPECT_FALSE(none.plan);
  EXPECT_EQ(none.smallest_budget, Bytes(110));
  PlanOptions unlimited = soon_on(step.machine, Bytes(0));
  unlimited.budget = Budget();
  const PlanResult all = plan(step.graph, unlimited);
  EXPECT_EQ(staying(all), 0) << "without a budget nothing stays";
  EXPECT_EQ(all.plan->time, Nanos(2020 + 100)) << "only the last copy has no run beside it";
}

// Weights that are read several times stay on the device between two reads if the bytes allow.
TEST(Homes, WeightsAreStreamed) {
  TwoUpdates step;
  step.graph.ops.clear();
  step.graph.values = {{"w1", Bytes(100), ValueKind::kInput, "disk"},
                       {"w2", Bytes(100), ValueKind::kInput, "disk"}};
  step.graph.results.clear();
  for (const auto& [id, weight] : {std::pair("a", 0), {"b", 1}, {"c", 1}, {"d", 0}}) {
    step.add(id, 1000, {weight}, {}, {});
  }
  const auto copies = [&](Budget budget) {
    PlanOptions options = soon_on(step.machine, Bytes(0));
    options.budget = budget;
    const PlanResult result = plan(step.graph, options);
    EXPECT_TRUE(verify(step.graph, *result.plan, result.budget, step.machine).empty());
    return std::count_if(result.plan->actions.begin(), result.plan->actions.end(),
                         [](const Action& action) { return action.kind == ActionKind::kCopy; });
  };
  EXPECT_EQ(copies(Bytes(100)), 3);
  EXPECT_EQ(copies(Bytes(200)), 1) << "one stays, and the other comes beside the first run";
  EXPECT_EQ(copies(Budget()), 2);
}

// A value that no action copies is on the device from begin to end. State and what becomes of it are there
// together, in one memory, or both move.
TEST(Homes, WhatIsNeverCopiedStays) {
  TwoUpdates step;
  const auto without = [&](const std::string& number) {
    std::vector<Action> actions;
    for (const Action& action : step.actions) {
      const bool is_of = action.id == "s" + number || action.id == "t" + number;
      if (action.kind == kRun || !is_of) actions.push_back(action);
    }
    return actions;
  };
  EXPECT_EQ(stays_on_device(step.graph, step.actions), std::vector<char>(6, 0));
  EXPECT_FALSE(as_placed(step.graph, step.actions));
  const std::vector<Action> one = without("1");
  EXPECT_EQ(stays_on_device(step.graph, one), (std::vector<char>{0, 0, 1, 0, 1, 0}));
  const Timeline timeline = simulate(step.graph, one, step.machine);
  EXPECT_EQ(timeline.initial, Bytes(100));
  EXPECT_EQ(timeline.peak, Bytes(210));
  EXPECT_EQ(timeline.peaks[1], Bytes(200)) << "the state that stays is not there";
  EXPECT_EQ(timeline.time, Nanos(2020 + 200));
  Plan plan;
  plan.actions = one;
  const auto faults = [&](int64_t budget) {
    std::vector<ViolationKind> kinds;
    for (const Violation& fault : verify(step.graph, plan, Bytes(budget), step.machine)) {
      if (fault.kind != ViolationKind::kFalseClaim) kinds.push_back(fault.kind);
    }
    return kinds;
  };
  EXPECT_EQ(faults(210), std::vector<ViolationKind>{});
  EXPECT_EQ(faults(209).front(), ViolationKind::kOverBudget);
  plan.actions.push_back({kFree, "s1", ""});
  EXPECT_EQ(faults(210), std::vector<ViolationKind>{ViolationKind::kInputFreed});
  plan.actions = step.actions;
  plan.actions.erase(plan.actions.begin() + 4);  // The old state comes, and the new one is not sent.
  EXPECT_EQ(stays_on_device(step.graph, plan.actions), std::vector<char>(6, 0));
  EXPECT_EQ(faults(210).back(), ViolationKind::kMissingResult);
  plan.actions = step.actions;
  plan.actions.erase(plan.actions.begin() + 1);  // The other way round.
  EXPECT_EQ(stays_on_device(step.graph, plan.actions), std::vector<char>(6, 0));
  // A value that no run touches stays where it is.
  step.graph.values.push_back({"unread", Bytes(50), ValueKind::kInput, "disk"});
  EXPECT_EQ(simulate(step.graph, one, step.machine).peaks[1], Bytes(250));
}

TEST(Homes, MistakesAreNamed) {
  TwoUpdates step;
  const auto message = [](const auto& function) -> std::string {
    try {
      function();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { plan(step.graph, soon_on({}, Bytes(1000))); }).find("no such memory"),
            std::string::npos);
  Machine one_way = step.machine;
  one_way.channels.pop_back();
  EXPECT_NE(
      message([&] { plan(step.graph, soon_on(one_way, Bytes(1000))); }).find("no channel each way"),
      std::string::npos);
  Machine small = step.machine;
  small.memories[1].capacity = Bytes(399);
  EXPECT_NE(message([&] { plan(step.graph, soon_on(small, Bytes(1000))); }).find("holds 399 bytes"),
            std::string::npos);
  EXPECT_NE(message([&] { frontier(step.graph); }).find("needs the machine"), std::string::npos);
  step.graph.values[0].home = "disk";
  EXPECT_NE(message([&] { validate(step.graph); }).find("neither an input nor a result"),
            std::string::npos);
}

}  // namespace
}  // namespace reprise::testing
