// Tests plans with copies: simulate(), verify(), the interpreter and an event-driven machine agree
// on time and bytes; whatever the durations, no memory ever holds more than the order of the
// actions says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/run/bookkeeping.h"
#include "support/event_machine.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_copies.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise {
namespace {

using testing::any_chain;
using testing::EventResult;
using testing::for_chains;
using testing::random_machine;
using testing::run_events;
using testing::with_random_copies;

Plan claimed(const Graph& graph, const Machine& machine, const std::vector<Action>& actions) {
  Plan plan;
  plan.machine_sha256 = machine_sha256(machine);
  plan.actions = actions;
  const Timeline timeline = simulate(graph, actions, machine);
  plan.peak = plan.budget = timeline.peak;
  plan.time = timeline.time;
  plan.baseline = baseline(graph);
  return plan;
}

std::string all(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) text += "\n" + violation.message;
  return text;
}

template <class Check>
void for_plans(uint64_t seed, int count, const Check& check) {
  for_chains(seed, count, any_chain(6), [&](const Chain& chain, std::mt19937_64& random) {
    const Graph graph = lower(chain);
    const Machine machine = random_machine(random);
    const std::vector<Action> actions =
        with_random_copies(random, graph, machine, with_frees(graph, plain_runs(graph)));
    SCOPED_TRACE(to_json(machine));
    check(graph, machine, actions, random);
  });
}

TEST(Copies, EveryAccountAgrees) {
  int64_t copies = 0, stalls = 0;
  for_plans(91, 2000,
            [&](const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
                std::mt19937_64&) {
              const Timeline timeline = simulate(graph, actions, machine);
              const Plan plan = claimed(graph, machine, actions);
              const std::vector<Violation> violations = verify(graph, plan, plan.budget, machine);
              ASSERT_TRUE(violations.empty()) << all(violations);
              const EventResult events = run_events(graph, machine, actions);
              ASSERT_EQ(events.time, timeline.time.count());
              BookkeepingBackend backend(graph, &machine);
              execute(Program(graph, actions, machine), backend);
              ASSERT_EQ(backend.time(), timeline.time);
              ASSERT_EQ(backend.peak(), timeline.peak);
              for (size_t m = 1; m < machine.memories.size(); ++m) {
                ASSERT_EQ(backend.peak_elsewhere(static_cast<int32_t>(m)), timeline.peaks[m]);
                ASSERT_LE(events.peaks[m], timeline.peaks[m].count());
              }
              ASSERT_LE(events.peaks[0], timeline.peak.count());
              ASSERT_EQ(live_bytes(plan_blocks(graph, actions, machine), Bytes(1)) + graph.fixed,
                        timeline.peak);
              const Explanation explanation = explain(graph, plan, machine);
              Bytes held;
              for (const Holder& holder : explanation.holders) held += holder.bytes;
              ASSERT_EQ(held, timeline.peak);
              Nanos waited, time;
              for (const ChannelUse& use : explanation.channels) waited += use.waited;
              for (const TimelineStep& step : timeline.steps) time += step.time;
              ASSERT_EQ(time, timeline.time);
              for (const Action& action : actions) {
                if (action.kind == ActionKind::kRun) {
                  const Op& op = graph.ops[static_cast<size_t>(find_op(graph, action.id))];
                  for (const Variant& v : op.variants) {
                    if (v.name == action.variant) time -= v.time;
                  }
                }
              }
              ASSERT_EQ(waited, time);
              copies += static_cast<int64_t>(timeline.transfers.size());
              stalls += waited > Nanos(0);
            });
  EXPECT_GT(copies, 1000);
  EXPECT_GT(stalls, 100);
}

TEST(Copies, BytesHoldForAnyDurations) {
  int64_t tight = 0;
  for_plans(92, 300,
            [&](const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
                std::mt19937_64& random) {
              const Timeline timeline = simulate(graph, actions, machine);
              for (int timing = 0; timing < 20; ++timing) {
                const double copies = std::exp2(static_cast<double>(random() % 9) - 4);
                const auto duration = [&](size_t action, int64_t usual) {
                  const double noise = std::exp(static_cast<double>(random() % 1000) / 125 - 4);
                  const double scale = actions[action].kind == ActionKind::kCopy ? copies : 1;
                  return static_cast<int64_t>(noise * scale * static_cast<double>(usual + 1));
                };
                const EventResult events = run_events(graph, machine, actions, duration);
                for (size_t m = 0; m < machine.memories.size(); ++m) {
                  ASSERT_LE(events.peaks[m], timeline.peaks[m].count()) << machine.memories[m].name;
                }
                tight += events.peaks[0] == timeline.peak.count();
              }
            });
  EXPECT_GT(tight, 1000);
}

// Takes one action away, or puts it elsewhere: whatever verify() accepts then runs on the event
// machine within the bytes, and simulate() gives it the same time. A plan that could need more bytes
// with other durations is never accepted.
TEST(Copies, DamagedPlansAreRefusedOrStillHold) {
  int64_t refused = 0, accepted = 0;
  for_plans(93, 1500,
            [&](const Graph& graph, const Machine& machine, std::vector<Action> actions,
                std::mt19937_64& random) {
              const size_t from = random() % actions.size();
              Action moved = actions[from];
              actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
              if (random() % 2 == 0) {
                actions.insert(
                    actions.begin() + static_cast<std::ptrdiff_t>(random() % (actions.size() + 1)),
                    moved);
              }
              for (Action& action : actions) action.after.clear();
              Plan plan;
              plan.actions = actions;
              plan.baseline = baseline(graph);
              plan.budget = Bytes(1'000'000);
              const std::vector<Violation> first = verify(graph, plan, plan.budget, machine);
              const bool valid =
                  std::all_of(first.begin(), first.end(), [](const Violation& violation) {
                    return violation.kind == ViolationKind::kFalseClaim;
                  });
              if (!valid) {
                ++refused;
                return;
              }
              ++accepted;
              const Timeline timeline = simulate(graph, actions, machine);
              ASSERT_EQ(run_events(graph, machine, actions).time, timeline.time.count());
              for (int timing = 0; timing < 10; ++timing) {
                const auto duration = [&](size_t, int64_t usual) {
                  return static_cast<int64_t>(random() % static_cast<uint64_t>(8 * usual + 8));
                };
                const EventResult events = run_events(graph, machine, actions, duration);
                for (size_t m = 0; m < machine.memories.size(); ++m) {
                  ASSERT_LE(events.peaks[m], timeline.peaks[m].count());
                }
              }
            });
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 100);
}

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
}  // namespace reprise
