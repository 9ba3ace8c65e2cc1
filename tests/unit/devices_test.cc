// Tests several devices by hand: files of graphs, times, bytes, and every fault.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "reprise/run/bookkeeping.h"

namespace reprise {
namespace {

// Returns two branches of one input that meet: 40 ns each on the first device, 30 ns on the second
// one.
Graph branches() {
  return parse_graph(R"({"format": "reprise.graph", "version": 3, "name": "branches",
    "values": [{"id": "in", "bytes": 4, "kind": "input"}, {"id": "a", "bytes": 10},
               {"id": "b", "bytes": 20}, {"id": "c", "bytes": 5}],
    "ops": [{"id": "f", "variants": [{"ns": 40, "reads": ["in"], "writes": ["a"]}]},
            {"id": "g", "variants": [{"ns": 40, "reads": ["in"], "writes": ["b"]},
                                     {"name": "fast", "at": "gpu", "ns": 30, "workspace_bytes": 7,
                                      "reads": ["in"], "writes": ["b"]}]},
            {"id": "h", "variants": [{"ns": 7, "reads": ["a", "b"], "writes": ["c"]}]}],
    "results": ["c"]})");
}

// One byte takes a nanosecond.
Machine two_devices() {
  return parse_machine(R"({"format": "reprise.machine", "version": 2,
    "memories": [{"name": "cpu"}, {"name": "gpu", "bytes": 31, "computes": true}],
    "channels": [{"from": "cpu", "to": "gpu", "bytes_per_second": 1000000000},
                 {"from": "gpu", "to": "cpu", "bytes_per_second": 1000000000}]})");
}

std::vector<Action> both() {
  return {{ActionKind::kCopy, "in", "", "cpu", "gpu"},
          {ActionKind::kWait, "in", "", "gpu"},
          {ActionKind::kRun, "g", "fast"},
          {ActionKind::kFree, "in", "", "gpu"},
          {ActionKind::kCopy, "b", "", "gpu", "cpu"},
          {ActionKind::kRun, "f", "default"},
          {ActionKind::kWait, "b", "", "cpu"},
          {ActionKind::kFree, "b", "", "gpu"},
          {ActionKind::kRun, "h", "default"},
          {ActionKind::kFree, "a", ""},
          {ActionKind::kFree, "b", ""}};
}

TEST(DevicesByHand, RunsOnDifferentDevicesOverlap) {
  const Timeline timeline = simulate(branches(), both(), two_devices());
  EXPECT_EQ(timeline.transfers[0].end, Nanos(4));
  EXPECT_EQ(timeline.steps[2].start, Nanos(4));  // on the second device
  EXPECT_EQ(timeline.steps[2].device, 1);
  EXPECT_EQ(timeline.transfers[1].start, Nanos(34));
  EXPECT_EQ(timeline.transfers[1].end, Nanos(54));
  EXPECT_EQ(timeline.steps[5].start, Nanos(0));  // meanwhile, on the first one
  EXPECT_EQ(timeline.steps[6].time, Nanos(14));  // the wait of the first device
  EXPECT_EQ(timeline.steps[7].time, Nanos(20));  // the free holds up the second one
  EXPECT_EQ(timeline.time, Nanos(61));
  EXPECT_EQ(timeline.peak, Bytes(39));
  EXPECT_EQ(timeline.peaks[1], Bytes(31));
  EXPECT_EQ(baseline(branches()), (Baseline{.peak = Bytes(39), .time = Nanos(87)}));
}

// A copy begins behind the runs of the device that it goes to: their bytes are given back then.
TEST(DevicesByHand, ACopyBeginsBehindTheRunsAtBothEnds) {
  std::vector<Action> actions = both();
  std::swap(actions[4], actions[5]);  // The copy of b stands behind the run of f.
  const Timeline timeline = simulate(branches(), actions, two_devices());
  EXPECT_EQ(timeline.transfers[1].issued, Nanos(40));
  EXPECT_EQ(timeline.time, Nanos(67));
}

std::vector<ViolationKind> faults(const std::vector<Action>& actions,
                                  const Machine& machine = two_devices()) {
  Plan plan;
  plan.actions = actions;
  std::vector<ViolationKind> kinds;
  for (const Violation& violation : verify(branches(), plan, Bytes(39), machine)) {
    if (violation.kind != ViolationKind::kFalseClaim) kinds.push_back(violation.kind);
  }
  return kinds;
}

std::vector<Action> without(size_t action) {
  std::vector<Action> actions = both();
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(action));
  return actions;
}

TEST(DevicesByHand, VerifyNamesEveryFault) {
  using Kinds = std::vector<ViolationKind>;
  EXPECT_EQ(faults(both()), Kinds{});
  EXPECT_EQ(faults(without(0)),
            (Kinds{ViolationKind::kNotLive, ViolationKind::kNotLive, ViolationKind::kNotLive}));
  // It is read on the second device, and given back there, under way.
  EXPECT_EQ(faults(without(1)), (Kinds{ViolationKind::kUnderWay, ViolationKind::kUnderWay}));
  EXPECT_EQ(faults(without(3)), Kinds{ViolationKind::kLeftOver});
  EXPECT_EQ(faults(without(6)),
            (Kinds{ViolationKind::kUnderWay, ViolationKind::kUnderWay, ViolationKind::kUnderWay}));
  EXPECT_EQ(faults(without(7)), Kinds{ViolationKind::kLeftOver});
  // An input may be given back on other devices only.
  std::vector<Action> actions = both();
  actions[3].at = "";
  EXPECT_EQ(faults(actions), (Kinds{ViolationKind::kInputFreed, ViolationKind::kLeftOver}));
  Machine machine = two_devices();
  machine.memories[1].capacity = Bytes(30);
  EXPECT_EQ(faults(both(), machine), Kinds{ViolationKind::kOverBudget});
  machine.memories[1].computes = false;
  EXPECT_EQ(faults(both(), machine).front(), ViolationKind::kUnknownId);
  EXPECT_EQ(faults({{ActionKind::kRun, "g", "fast"}}, {}).front(), ViolationKind::kUnknownId);
  EXPECT_THROW(simulate(branches(), both(), machine), InputError);
}

// The messages say which device has the value, or should have it.
TEST(DevicesByHand, MessagesNameTheDevice) {
  Plan plan;
  plan.actions = {{ActionKind::kRun, "g", "fast"}};
  const std::vector<Violation> violations = verify(branches(), plan, Bytes(39), two_devices());
  EXPECT_NE(violations.front().message.find("in, which is not live in gpu"), std::string::npos)
      << violations.front().message;
  try {
    simulate(branches(), plan.actions, two_devices());
    ADD_FAILURE() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("not live in gpu"), std::string::npos) << error.what();
  }
}

TEST(DevicesByHand, TheMemoryOfAVariantMakesAGraphVersion3) {
  const Graph graph = branches();
  EXPECT_EQ(graph.ops[1].variants[1].at, "gpu");
  const std::string text = to_json(graph);
  EXPECT_NE(text.find("\"version\": 3"), std::string::npos) << text;
  EXPECT_EQ(parse_graph(text), graph);
  Graph plain = graph;
  plain.ops[1].variants.pop_back();
  EXPECT_NE(to_json(plain).find("\"version\": 1"), std::string::npos);
  std::string older = text;
  older.replace(older.find("\"version\": 3"), 12, "\"version\": 2");
  EXPECT_THROW(parse_graph(older), InputError);
}

TEST(DevicesByHand, ExplainSaysWhatEachDeviceDoes) {
  Plan plan;
  plan.actions = both();
  const Explanation explanation = explain(branches(), plan, two_devices());
  ASSERT_EQ(explanation.devices.size(), 2u);
  EXPECT_EQ(explanation.devices[0], (DeviceUse{"cpu", 2, Nanos(47), Bytes(39)}));
  EXPECT_EQ(explanation.devices[1], (DeviceUse{"gpu", 1, Nanos(30), Bytes(31)}));
  ASSERT_EQ(explanation.alternatives.size(), 1u);
  EXPECT_EQ(explanation.alternatives[0].kind, "fast");
}

// A backend that knows one device refuses the runs of another one.
TEST(DevicesByHand, ABackendWithOneDeviceRefusesTheOthers) {
  const Graph graph = branches();
  const Machine machine = two_devices();
  BookkeepingBackend backend(graph);
  const Program program(graph, {{ActionKind::kRun, "g", "fast"}}, machine);
  EXPECT_THROW(execute(program, backend), InputError);
}

}  // namespace
}  // namespace reprise
