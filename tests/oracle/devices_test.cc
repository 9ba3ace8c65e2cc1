// Tests plans on several devices: simulate(), verify(), the interpreter and an event-driven machine
// agree on time and bytes; whatever the durations, no memory ever holds more than the order of the
// actions says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/run/bookkeeping.h"
#include "support/event_machine.h"
#include "support/random_devices.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise {
namespace {

using testing::EventResult;
using testing::random_devices;
using testing::random_placing;
using testing::run_events;

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

template <class Check>
void for_placings(uint64_t seed, int count, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < testing::test_scale(count); ++number) {
    const Machine machine = random_devices(random);
    const Graph graph = testing::spread(
        random, testing::random_graph(random, {.max_forward = 4, .roles = false}), machine);
    const std::vector<Action> actions = random_placing(random, graph, machine);
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
  int64_t copies = 0, overlaps = 0, stalls = 0;
  for_placings(
      61, 600,
      [&](const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
          std::mt19937_64&) {
        const Timeline timeline = simulate(graph, actions, machine);
        const Plan plan = claimed(graph, machine, actions);
        std::string faults;
        for (const Violation& violation : verify(graph, plan, plan.budget, machine)) {
          faults += "\n" + violation.message;
        }
        ASSERT_EQ(faults, "");
        const EventResult events = run_events(graph, machine, actions);
        ASSERT_EQ(events.time, timeline.time.count());
        BookkeepingBackend backend(graph, &machine);
        execute(Program(graph, actions, machine), backend);
        ASSERT_EQ(backend.time(), timeline.time);
        ASSERT_EQ(backend.peak(), timeline.peak);
        for (size_t m = 0; m < machine.memories.size(); ++m) {
          ASSERT_EQ(m == 0 ? backend.peak() : backend.peak_elsewhere(static_cast<int32_t>(m)),
                    timeline.peaks[m]);
          ASSERT_LE(events.peaks[m], timeline.peaks[m].count());
        }
        ASSERT_EQ(live_bytes(plan_blocks(graph, actions, machine), Bytes(1)) + graph.fixed,
                  timeline.peak);
        const Explanation explanation = explain(graph, plan, machine);
        Bytes held;
        for (const Holder& holder : explanation.holders) held += holder.bytes;
        ASSERT_EQ(held, timeline.peak);
        int64_t runs = 0;
        for (const DeviceUse& device : explanation.devices) runs += device.runs;
        ASSERT_EQ(runs, std::count_if(actions.begin(), actions.end(), [](const Action& action) {
                    return action.kind == ActionKind::kRun;
                  }));
        overlaps += has_overlap(actions, timeline);
        copies += static_cast<int64_t>(timeline.transfers.size());
        for (size_t a = 0; a < actions.size(); ++a) {
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
  EXPECT_GT(overlaps, 100);
  EXPECT_GT(stalls, 50);
}

TEST(Devices, BytesHoldForAnyDurations) {
  int64_t tight = 0;
  for_placings(62, 120,
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
                     ASSERT_LE(events.peaks[m], timeline.peaks[m].count())
                         << machine.memories[m].name;
                     tight += m > 0 && events.peaks[m] == timeline.peaks[m].count();
                   }
                 }
               });
  EXPECT_GT(tight, 300);
}

// Takes one action away, or puts it elsewhere: whatever verify() accepts then runs on the event
// machine within the bytes, and simulate() gives it the same time.
TEST(Devices, DamagedPlansAreRefusedOrStillHold) {
  int64_t refused = 0, accepted = 0;
  for_placings(63, 800,
               [&](const Graph& graph, const Machine& machine, std::vector<Action> actions,
                   std::mt19937_64& random) {
                 const size_t from = random() % actions.size();
                 const Action moved = actions[from];
                 actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
                 if (random() % 2 == 0) {
                   const auto to = static_cast<std::ptrdiff_t>(random() % (actions.size() + 1));
                   actions.insert(actions.begin() + to, moved);
                 }
                 for (Action& action : actions) action.after.clear();
                 Plan plan;
                 plan.actions = actions;
                 plan.baseline = baseline(graph);
                 plan.budget = Bytes(1'000'000);
                 const std::vector<Violation> faults = verify(graph, plan, plan.budget, machine);
                 const bool valid =
                     std::all_of(faults.begin(), faults.end(), [](const Violation& violation) {
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
  EXPECT_GT(refused, 250);
  EXPECT_GT(accepted, 60);
}

}  // namespace
}  // namespace reprise
