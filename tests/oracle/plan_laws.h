// These laws hold for every plan with copies, whoever makes it: the tests of accounts ask them of random
// plans, and those of planners of their plans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/run/bookkeeping.h"
#include "support/event_machine.h"

namespace reprise::testing {

inline Plan claimed(const Graph& graph, const Machine& machine,
                    const std::vector<Action>& actions) {
  Plan plan;
  plan.machine_sha256 = machine_sha256(machine);
  plan.actions = actions;
  const Timeline timeline = simulate(graph, actions, machine);
  plan.peak = plan.budget = timeline.peak;
  plan.time = timeline.time;
  plan.baseline = explain(graph, plan, machine).baseline;
  return plan;
}

// The graph of a pipeline has no baseline, because no plan runs all of it on the first device.
inline void expect_valid_but_for_baseline(const Graph& graph, const Machine& machine,
                                          const Plan& plan) {
  std::string faults;
  for (const Violation& violation : verify(graph, plan, plan.budget, machine)) {
    if (violation.message.find("no baseline") == std::string::npos) {
      faults += "\n" + violation.message;
    }
  }
  ASSERT_EQ(faults, "");
}

// simulate(), the interpreter, the event-driven machine and the packer agree on time and bytes.
inline void expect_walks_agree(const Graph& graph, const Machine& machine,
                               const std::vector<Action>& actions, const Timeline& timeline) {
  const EventResult events = run_events(graph, machine, actions);
  ASSERT_EQ(events.time, timeline.time.count());
  BookkeepingBackend backend(graph, &machine);
  execute(Program(graph, actions, machine), backend);
  ASSERT_EQ(backend.time(), timeline.time);
  for (size_t m = 0; m < machine.memories.size(); ++m) {
    ASSERT_EQ(backend.peak(static_cast<int32_t>(m)), m == 0 ? timeline.peak : timeline.peaks[m]);
    ASSERT_LE(events.peaks[m], timeline.peaks[m].count());
  }
  ASSERT_EQ(live_bytes(plan_blocks(graph, actions, machine), Bytes(1)) + graph.fixed,
            timeline.peak);
}

// The same, with verify() and explain().
inline void expect_accounts_agree(const Graph& graph, const Machine& machine, const Plan& plan,
                                  const Timeline& timeline, const Explanation& explanation) {
  expect_valid_but_for_baseline(graph, machine, plan);
  expect_walks_agree(graph, machine, plan.actions, timeline);
  Bytes held;
  for (const Holder& holder : explanation.holders) held += holder.bytes;
  ASSERT_EQ(held, timeline.peak);
}

// Counts the timings in which a memory held all that the order of the actions allows.
struct Tight {
  int64_t first = 0, others = 0;
};

inline void expect_bytes_for_any_durations(const Graph& graph, const Machine& machine,
                                           const std::vector<Action>& actions,
                                           std::mt19937_64& random, Tight& tight) {
  const Timeline timeline = simulate(graph, actions, machine);
  for (int timing = 0; timing < 20; ++timing) {
    const double copies = std::exp2(static_cast<double>(random() % 9) - 4);
    const auto duration = [&](size_t action, int64_t usual) {
      const double noise = std::exp(static_cast<double>(random() % 1000) / 125 - 4);
      const double scale = actions[action].kind == ActionKind::kRun ? 1 : copies;
      return static_cast<int64_t>(noise * scale * static_cast<double>(usual + 1));
    };
    const EventResult events = run_events(graph, machine, actions, duration);
    for (size_t m = 0; m < machine.memories.size(); ++m) {
      ASSERT_LE(events.peaks[m], timeline.peaks[m].count()) << machine.memories[m].name;
      (m == 0 ? tight.first : tight.others) += events.peaks[m] == timeline.peaks[m].count();
    }
  }
}

struct Judged {
  int64_t refused = 0, accepted = 0;
};

// Takes one action away, or puts it in another place: whatever verify() accepts then runs on the event
// machine within the bytes, and simulate() gives it the same time. A plan that could need more bytes
// with other durations is never accepted.
inline void expect_damaged_is_refused_or_holds(const Graph& graph, const Machine& machine,
                                               std::vector<Action> actions, std::mt19937_64& random,
                                               Judged& judged) {
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
  plan.budget = Bytes(1'000'000);
  const std::vector<Violation> faults = verify(graph, plan, plan.budget, machine);
  if (!std::ranges::all_of(faults, [](const Violation& violation) {
        return violation.kind == ViolationKind::kFalseClaim;
      })) {
    ++judged.refused;
    return;
  }
  ++judged.accepted;
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
}

}  // namespace reprise::testing
