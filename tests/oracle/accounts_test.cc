// Tests plans with copies, plans on several devices and plans of pipelines: simulate(), verify(),
// explain(), the interpreter, the packer and an event-driven machine agree on time and bytes.
// Whatever the durations, no memory ever holds more than the order of the actions says.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>

#include "oracle/plan_laws.h"
#include "reprise/model/lower.h"
#include "reprise/plan/pipeline.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_devices.h"
#include "support/random_graph.h"
#include "support/random_pipeline.h"

namespace reprise::testing {
namespace {

using Check = std::function<void(const Graph&, const Machine&, const std::vector<Action>&,
                                 std::mt19937_64&)>;
using ForPlans = void(uint64_t seed, int count, const Check& check);

// Copies at random moments of plain training of a chain.
void for_copies(uint64_t seed, int count, const Check& check) {
  for_chains(seed, count, any_chain(6), [&](const Chain& chain, std::mt19937_64& random) {
    const Graph graph = lower(chain);
    const Machine machine = random_machine(random);
    const std::vector<Action> actions =
        with_random_copies(random, graph, machine, with_frees(graph, plain_runs(graph)));
    SCOPED_TRACE(to_json(machine));
    check(graph, machine, actions, random);
  });
}

// Runs on random devices, with copies and messages between them.
void for_placings(uint64_t seed, int count, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < test_scale(count); ++number) {
    const Machine machine = random_devices(random);
    const Graph graph =
        spread(random, random_graph(random, {.max_forward = 4, .roles = false}), machine);
    std::vector<Action> actions = random_placing(random, graph, machine);
    if (number % 2 == 1) {
      actions = with_random_messages(random, graph, machine, std::move(actions));
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", graph " + std::to_string(number) + ": " +
                 describe(graph) + to_json(machine) + describe(actions));
    check(graph, machine, actions, random);
    if (::testing::Test::HasFailure()) return;
  }
}

// Plans of pipelines, lowered to plans of graphs.
void for_pipelines(uint64_t seed, int count, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < test_scale(count); ++number) {
    const Pipeline pipeline = random_pipeline(random, {.max_micro_batches = 4});
    const PipelineResult result = plan(pipeline, {.planner = number % 2 == 0 ? "1f1b" : "gpipe"});
    if (!result.plan) continue;
    const PipelineProgram program = lower(pipeline, *result.plan);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", pipeline " + std::to_string(number) + ": " +
                 to_json(pipeline));
    check(program.graph, program.machine,
          with_names(program.graph, program.actions, program.machine), random);
    if (::testing::Test::HasFailure()) return;
  }
}

// Counts what plans have, so that no test passes without it.
struct Coverage {
  int64_t copies = 0, messages = 0, overlaps = 0, stalls = 0;
};

struct PlanFamily {
  const char* name;
  ForPlans* for_plans;
  int plans, timed, damaged;  // in each of the three tests
  Coverage least;             // of the first test
  Tight least_tight;          // of the second
  Judged least_judged;        // of the third
};

class Accounts : public ::testing::TestWithParam<PlanFamily> {};

// Says whether two devices run at the same time.
bool has_overlap(const std::vector<Action>& actions, const Timeline& timeline) {
  std::vector<TimelineStep> runs;
  for (size_t a = 0; a < actions.size(); ++a) {
    const TimelineStep& step = timeline.steps[a];
    if (actions[a].kind != ActionKind::kRun || step.time == Nanos(0)) continue;
    for (const TimelineStep& other : runs) {
      const bool apart =
          other.start + other.time <= step.start || step.start + step.time <= other.start;
      if (other.device != step.device && !apart) return true;
    }
    runs.push_back(step);
  }
  return false;
}

// Returns how long the runs of a plan take, one after the other.
Nanos time_of_runs(const Graph& graph, const std::vector<Action>& actions, const Machine& machine) {
  Nanos time;
  for (const BoundAction& action : bind(graph, actions, machine)) {
    if (action.kind != ActionKind::kRun) continue;
    time += graph.ops[static_cast<size_t>(action.target)]
                .variants[static_cast<size_t>(action.variant)]
                .time;
  }
  return time;
}

// Capacities are kept exactly: one byte less is a violation.
void expect_exact_capacities(const Graph& graph, Machine machine, const Plan& plan,
                             const Timeline& timeline) {
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    machine.memories[m].capacity = timeline.peaks[m];
  }
  expect_valid_but_for_baseline(graph, machine, plan);
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    if (timeline.peaks[m] == Bytes(0)) continue;
    *machine.memories[m].capacity -= Bytes(1);
    const std::vector<Violation> over = verify(graph, plan, plan.budget, machine);
    ASSERT_FALSE(over.empty());
    ASSERT_EQ(over.front().kind, ViolationKind::kOverBudget);
    *machine.memories[m].capacity += Bytes(1);
  }
}

TEST_P(Accounts, EveryAccountAgrees) {
  Coverage found;
  GetParam().for_plans(
      61, GetParam().plans,
      [&](const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
          std::mt19937_64&) {
        const Timeline timeline = simulate(graph, actions, machine);
        const Plan plan = claimed(graph, machine, actions);
        const Explanation explanation = explain(graph, plan, machine);
        expect_accounts_agree(graph, machine, plan, timeline, explanation);
        expect_exact_capacities(graph, machine, plan, timeline);
        Nanos waited;
        for (const ChannelUse& use : explanation.channels) waited += use.waited;
        if (!has_devices(machine)) {
          ASSERT_EQ(waited + time_of_runs(graph, actions, machine), timeline.time);
        }
        int64_t runs = 0;
        for (const DeviceUse& device : explanation.devices) runs += device.runs;
        for (const Action& action : actions) {
          runs -= action.kind == ActionKind::kRun;
          found.messages += action.kind == ActionKind::kSend;
        }
        ASSERT_EQ(has_devices(machine) ? runs : 0, 0);
        found.copies += static_cast<int64_t>(timeline.transfers.size());
        found.overlaps += has_overlap(actions, timeline);
        found.stalls += waited > Nanos(0);
      });
  EXPECT_GE(found.copies, GetParam().least.copies);
  EXPECT_GE(found.messages, GetParam().least.messages);
  EXPECT_GE(found.overlaps, GetParam().least.overlaps);
  EXPECT_GE(found.stalls, GetParam().least.stalls);
}

TEST_P(Accounts, BytesHoldForAnyDurations) {
  Tight tight;
  GetParam().for_plans(
      62, GetParam().timed,
      [&](const auto& graph, const auto& machine, const auto& actions, auto& random) {
        expect_bytes_for_any_durations(graph, machine, actions, random, tight);
      });
  EXPECT_GE(tight.first, GetParam().least_tight.first);
  EXPECT_GE(tight.others, GetParam().least_tight.others);
}

TEST_P(Accounts, DamagedPlansAreRefusedOrStillHold) {
  Judged judged;
  GetParam().for_plans(
      63, GetParam().damaged,
      [&](const auto& graph, const auto& machine, const auto& actions, auto& random) {
        expect_damaged_is_refused_or_holds(graph, machine, actions, random, judged);
      });
  EXPECT_GE(judged.refused, GetParam().least_judged.refused);
  EXPECT_GE(judged.accepted, GetParam().least_judged.accepted);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Accounts,
    ::testing::Values(
        PlanFamily{"copies", for_copies, 2000, 300, 1500, {1000, 0, 0, 100}, {1000, 0}, {500, 100}},
        PlanFamily{
            "devices", for_placings, 600, 120, 800, {2000, 1000, 100, 50}, {0, 300}, {250, 60}},
        PlanFamily{"pipelines", for_pipelines, 100, 40, 200, {500, 500, 40, 20}, {1, 1}, {50, 20}}),
    [](const auto& family) { return std::string(family.param.name); });

// The trap of the first prototype: a prefetch between a run and the frees of its inputs.
TEST(Copies, APrefetchBeforeTheFreesOfTheRunBeforeCountsWithThem) {
  Graph graph;
  graph.name = "prefetch";
  graph.values = {
      {"in", Bytes(1), ValueKind::kInput}, {"a", Bytes(10)}, {"b", Bytes(10)}, {"c", Bytes(10)}};
  const auto op = [](const char* id, std::vector<ValueIndex> reads,
                     std::vector<ValueIndex> writes) {
    Variant variant;
    variant.time = Nanos(5);
    variant.reads = std::move(reads);
    variant.writes = std::move(writes);
    return Op{.id = id, .variants = {variant}};
  };
  graph.ops = {op("make", {0}, {1}), op("middle", {0}, {2}), op("last", {1}, {3})};
  graph.results = {3};
  const Machine machine = parse_offload("host=1GB/s");
  const auto plan = [&](bool behind_the_free) {
    std::vector<Action> actions = {{ActionKind::kRun, "make", "default"},
                                   {ActionKind::kCopy, "a", "", "device", "host"},
                                   {ActionKind::kWait, "a", "", "host"},
                                   {ActionKind::kFree, "a", ""},
                                   {ActionKind::kRun, "middle", "default"}};
    const Action free{ActionKind::kFree, "b", ""};
    const Action back{ActionKind::kCopy, "a", "", "host", "device"};
    actions.push_back(behind_the_free ? free : back);
    actions.push_back(behind_the_free ? back : free);
    actions.push_back({ActionKind::kWait, "a", "", "device"});
    actions.push_back({ActionKind::kFree, "a", "", "host"});
    actions.push_back({ActionKind::kRun, "last", "default"});
    actions.push_back({ActionKind::kFree, "a", ""});
    return actions;
  };
  EXPECT_EQ(simulate(graph, plan(true), machine).peak, Bytes(21));
  EXPECT_EQ(simulate(graph, plan(false), machine).peak, Bytes(21));
  EXPECT_EQ(simulate(graph, plan(false), machine).steps[5].during, Bytes(21));
  EXPECT_EQ(simulate(graph, plan(true), machine).steps[6].during, Bytes(11));
}

}  // namespace
}  // namespace reprise::testing
