// Tests plans with copies: simulate(), verify(), the interpreter and an event-driven machine agree
// on time and bytes; whatever the durations, no memory ever holds more than the order of the
// actions says.
#include <gtest/gtest.h>

#include <random>

#include "oracle/plan_laws.h"
#include "reprise/model/lower.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_copies.h"
#include "support/random_graph.h"

namespace reprise {
namespace {

using testing::any_chain;
using testing::claimed;
using testing::for_chains;
using testing::Judged;
using testing::random_machine;
using testing::Tight;
using testing::with_random_copies;

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
              const Explanation explanation = explain(graph, plan, machine);
              testing::expect_accounts_agree(graph, machine, plan, timeline, explanation);
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
  Tight tight;
  for_plans(92, 300, [&](const auto& graph, const auto& machine, const auto& actions,
                         auto& random) {
    testing::expect_bytes_for_any_durations(graph, machine, actions, random, tight);
  });
  EXPECT_GT(tight.first, 1000);
}

TEST(Copies, DamagedPlansAreRefusedOrStillHold) {
  Judged judged;
  for_plans(93, 1500, [&](const auto& graph, const auto& machine, const auto& actions,
                          auto& random) {
    testing::expect_damaged_is_refused_or_holds(graph, machine, actions, random, judged);
  });
  EXPECT_GT(judged.refused, 500);
  EXPECT_GT(judged.accepted, 100);
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
