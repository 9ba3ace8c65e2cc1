// Tests plans on several devices: simulate(), verify(), the interpreter and an event-driven machine
// agree on time and bytes; whatever the durations, no memory ever holds more than the order of the
// actions says.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "oracle/plan_laws.h"
#include "support/random_devices.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise {
namespace {

using testing::claimed;
using testing::Judged;
using testing::random_devices;
using testing::random_placing;
using testing::Tight;

template <class Check>
void for_placings(uint64_t seed, int count, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < testing::test_scale(count); ++number) {
    const Machine machine = random_devices(random);
    const Graph graph = testing::spread(
        random, testing::random_graph(random, {.max_forward = 4, .roles = false}), machine);
    std::vector<Action> actions = random_placing(random, graph, machine);
    if (number % 2 == 1) {
      actions = testing::with_random_messages(random, graph, machine, std::move(actions));
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", graph " + std::to_string(number) + ": " +
                 testing::describe(graph) + to_json(machine) + testing::describe(actions));
    check(graph, machine, actions, random);
    if (::testing::Test::HasFailure()) return;
  }
}

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

TEST(Devices, EveryAccountAgrees) {
  int64_t copies = 0, messages = 0, overlaps = 0, stalls = 0;
  for_placings(
      61, 600,
      [&](const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
          std::mt19937_64&) {
        const Timeline timeline = simulate(graph, actions, machine);
        const Plan plan = claimed(graph, machine, actions);
        const Explanation explanation = explain(graph, plan, machine);
        testing::expect_accounts_agree(graph, machine, plan, timeline, explanation);
        int64_t runs = 0;
        for (const DeviceUse& device : explanation.devices) runs += device.runs;
        ASSERT_EQ(runs, std::count_if(actions.begin(), actions.end(), [](const Action& action) {
                    return action.kind == ActionKind::kRun;
                  }));
        overlaps += has_overlap(actions, timeline);
        copies += static_cast<int64_t>(timeline.transfers.size());
        for (size_t a = 0; a < actions.size(); ++a) {
          messages += actions[a].kind == ActionKind::kSend;
          stalls += actions[a].kind == ActionKind::kFree && timeline.steps[a].time > Nanos(0);
        }
        // Capacities are kept exactly: one byte less is a violation.
        Machine tight = machine;
        for (size_t m = 1; m < machine.memories.size(); ++m) {
          tight.memories[m].capacity = timeline.peaks[m];
        }
        ASSERT_TRUE(verify(graph, plan, plan.budget, tight).empty());
        for (size_t m = 1; m < machine.memories.size(); ++m) {
          if (timeline.peaks[m] == Bytes(0)) continue;
          *tight.memories[m].capacity -= Bytes(1);
          const std::vector<Violation> over = verify(graph, plan, plan.budget, tight);
          ASSERT_FALSE(over.empty());
          ASSERT_EQ(over.front().kind, ViolationKind::kOverBudget);
          *tight.memories[m].capacity += Bytes(1);
        }
      });
  EXPECT_GT(copies, 2000);
  EXPECT_GT(messages, 1000);
  EXPECT_GT(overlaps, 100);
  EXPECT_GT(stalls, 50);
}

TEST(Devices, BytesHoldForAnyDurations) {
  Tight tight;
  for_placings(62, 120,
               [&](const auto& graph, const auto& machine, const auto& actions, auto& random) {
                 testing::expect_bytes_for_any_durations(graph, machine, actions, random, tight);
               });
  EXPECT_GT(tight.others, 300);
}

TEST(Devices, DamagedPlansAreRefusedOrStillHold) {
  Judged judged;
  for_placings(
      63, 800, [&](const auto& graph, const auto& machine, const auto& actions, auto& random) {
        testing::expect_damaged_is_refused_or_holds(graph, machine, actions, random, judged);
      });
  EXPECT_GT(judged.refused, 250);
  EXPECT_GT(judged.accepted, 60);
}

}  // namespace
}  // namespace reprise
