// Tests machines: the short form, times of copies, files with located errors; and plans with copies
// as files.
#include "reprise/model/machine.h"

#include <gtest/gtest.h>

#include <string>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

constexpr const char* kText = R"({"format": "reprise.machine", "version": 1,
 "memories": [{"name": "device"}, {"name": "host", "bytes": 4096}],
 "channels": [
  {"from": "device", "to": "host", "bytes_per_second": 12000000000, "latency_ns": 10000},
  {"from": "host", "to": "device", "bytes_per_second": 11000000000, "shares": 0}]})";

TEST(Machine, IsReadAndWrittenBackEqual) {
  const Machine machine = parse_machine(kText);
  ASSERT_EQ(machine.memories.size(), 2u);
  EXPECT_EQ(machine.memories[1], (Memory{"host", Bytes(4096)}));
  ASSERT_EQ(machine.channels.size(), 2u);
  EXPECT_EQ(machine.channels[0], (Channel{0, 1, 12'000'000'000, Nanos(10'000), -1}));
  EXPECT_EQ(machine.channels[1], (Channel{1, 0, 11'000'000'000, Nanos(0), 0}));
  EXPECT_EQ(queue_of(machine, 1), 0);
  EXPECT_EQ(parse_machine(to_json(machine)), machine);
  EXPECT_EQ(machine_sha256(machine), canonical_sha256(to_json(machine)));
  EXPECT_EQ(machine_sha256(machine).size(), 64u);
}

// Replaces a part of the text, and expects an error at the pointer.
void expect_error(const std::string& from, const std::string& to, const std::string& pointer) {
  std::string text = kText;
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  try {
    parse_machine(text, "machine.json");
    ADD_FAILURE() << "no error for " << to;
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().file, "machine.json");
    EXPECT_EQ(error.where().pointer, pointer) << error.what();
    EXPECT_GT(error.where().line, 0);
  }
}

TEST(Machine, MistakesAreLocated) {
  expect_error(R"("name": "host")", R"("name": "device")", "/memories/1/name");
  expect_error(R"("name": "host")", R"("name": "")", "/memories/1/name");
  expect_error(R"({"name": "device"})", R"({"name": "device", "bytes": 1})", "/memories/0/bytes");
  expect_error(R"("bytes": 4096)", R"("bytes": -1)", "/memories/1/bytes");
  expect_error(R"("from": "device")", R"("from": "disk")", "/channels/0/from");
  expect_error(R"("to": "host")", R"("to": "device")", "/channels/0/to");
  expect_error(R"("bytes_per_second": 12000000000)", R"("bytes_per_second": 0)",
               "/channels/0/bytes_per_second");
  expect_error(R"("shares": 0)", R"("shares": 1)", "/channels/1/shares");
  expect_error(R"("from": "host", "to": "device")", R"("from": "device", "to": "host")",
               "/channels/1");
  expect_error(R"("latency_ns")", R"("latency")", "/channels/0/latency");
  expect_error(R"("version": 1)", R"("version": 3)", "/version");
  expect_error(R"("bytes": 4096)", R"("computes": true)", "/memories/1/computes");
}

TEST(Machine, DevicesMakeItVersion2) {
  Machine machine = parse_machine(kText);
  EXPECT_FALSE(has_devices(machine));
  EXPECT_NE(to_json(machine).find("\"version\": 1"), std::string::npos);
  machine.memories[1].computes = true;
  EXPECT_TRUE(has_devices(machine));
  const std::string text = to_json(machine);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("computes": true)"), std::string::npos) << text;
  EXPECT_EQ(parse_machine(text), machine);
  // The first memory computes in any case, and its key changes nothing.
  machine.memories[1].computes = false;
  const std::string hash = machine_sha256(machine);
  machine.memories[0].computes = true;
  EXPECT_EQ(machine_sha256(machine), hash);
  EXPECT_TRUE(computes(machine, 0));
  EXPECT_FALSE(computes(machine, 1));
}

TEST(Machine, CopiesTakeLatencyAndBytesRoundedUp) {
  EXPECT_EQ(copy_time({0, 1, 3, Nanos(7), -1}, Bytes(1)), Nanos(7 + 333'333'334));
  EXPECT_EQ(copy_time({0, 1, 1'000'000'000, Nanos(0), -1}, Bytes(5)), Nanos(5));
  EXPECT_EQ(copy_time({0, 1, 1, Nanos(3), -1}, Bytes(0)), Nanos(3));
  EXPECT_THROW(copy_time({0, 1, 1, Nanos(0), -1}, Bytes(int64_t{1} << 60)), InputError);
}

TEST(Machine, TheShortFormHasOneMemoryMore) {
  const Machine same = parse_offload("host=12GB/s");
  EXPECT_EQ(same.memories[1].name, "host");
  EXPECT_EQ(same.channels[0], (Channel{0, 1, 12'000'000'000, Nanos(10'000), -1}));
  EXPECT_EQ(same.channels[1], (Channel{1, 0, 12'000'000'000, Nanos(10'000), -1}));
  const Machine two = parse_offload("disk=1.1GB/s,0.65GB/s");
  EXPECT_EQ(two.channels[0].bytes_per_second, 1'100'000'000);
  EXPECT_EQ(two.channels[1].bytes_per_second, 650'000'000);
  for (const char* wrong : {"", "host", "=1GB/s", "host=", "host=1GB", "host=0GB/s", "host=fast/s",
                            "device=1GB/s", "host=1GB/s,", "host=1GB/s,2GB"}) {
    EXPECT_THROW(parse_offload(wrong), InputError) << wrong;
  }
}

Plan moving_plan() {
  Plan plan;
  plan.problem = {.format = "reprise.graph", .name = "g", .sha256 = {}};
  plan.machine_sha256 = std::string(64, 'b');
  plan.actions = {{ActionKind::kRun, "F0", "fast"},
                  {ActionKind::kCopy, "x1", "", "device", "host"},
                  {ActionKind::kCopy, "x1", "", "host", "disk", {1}},
                  {ActionKind::kWait, "x1", "", "host"},
                  {ActionKind::kFree, "x1", "", "host"},
                  {ActionKind::kFree, "x1", ""}};
  return plan;
}

TEST(PlanFile, CopiesMakeItVersion2) {
  const Plan plan = moving_plan();
  const std::string text = to_json(plan);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos);
  EXPECT_NE(text.find(R"(["copy", "x1", "host", "disk", {"after": [1]}])"), std::string::npos)
      << text;
  EXPECT_NE(text.find(R"(["free", "x1", "host"])"), std::string::npos);
  EXPECT_EQ(parse_plan(text), plan);
  Plan without = plan;
  without.machine_sha256.clear();
  EXPECT_THROW(to_json(without), InputError);
  without.actions = {plan.actions.front()};
  EXPECT_NE(to_json(without).find("\"version\": 1"), std::string::npos);
}

TEST(PlanFile, Version1HasNoCopies) {
  std::string text = to_json(moving_plan());
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 1");
  EXPECT_THROW(parse_plan(text), InputError);
}

Graph two_ops() {
  return parse_graph(R"({"format": "reprise.graph", "version": 1, "name": "two",
    "values": [{"id": "in", "bytes": 1, "kind": "input"}, {"id": "a", "bytes": 10},
               {"id": "b", "bytes": 20}, {"id": "c", "bytes": 5}],
    "ops": [{"id": "f", "variants": [{"ns": 3, "reads": ["in"], "writes": ["a"]}]},
            {"id": "g", "variants": [{"ns": 40, "reads": ["in"], "writes": ["b"]}]},
            {"id": "h", "variants": [{"ns": 7, "reads": ["a", "b"], "writes": ["c"]}]}],
    "results": ["c"]})");
}

std::vector<Action> moving() {
  return {{ActionKind::kRun, "f", "default"},
          {ActionKind::kCopy, "a", "", "device", "host"},
          {ActionKind::kWait, "a", "", "host"},
          {ActionKind::kFree, "a", ""},
          {ActionKind::kRun, "g", "default"},
          {ActionKind::kCopy, "a", "", "host", "device"},
          {ActionKind::kWait, "a", "", "device"},
          {ActionKind::kFree, "a", "", "host"},
          {ActionKind::kRun, "h", "default"},
          {ActionKind::kFree, "a", ""},
          {ActionKind::kFree, "b", ""}};
}

// By hand, with 1 byte a nanosecond out, 2 ns a byte in, latencies of 4 ns.
Machine by_hand() {
  Machine machine = parse_offload("host=1GB/s,0.5GB/s");
  for (Channel& channel : machine.channels) channel.latency = Nanos(4);
  return machine;
}

TEST(Copies, TimesAndBytesByHand) {
  const Timeline timeline = simulate(two_ops(), moving(), by_hand());
  ASSERT_EQ(timeline.transfers.size(), 2u);
  EXPECT_EQ(timeline.transfers[0].start, Nanos(3));
  EXPECT_EQ(timeline.transfers[0].end, Nanos(17));
  EXPECT_EQ(timeline.transfers[1].start, Nanos(57));
  EXPECT_EQ(timeline.transfers[1].end, Nanos(81));
  EXPECT_EQ(timeline.time, Nanos(88));
  EXPECT_EQ(timeline.peak, Bytes(36));
  EXPECT_EQ(timeline.steps[4].during, Bytes(21));
  EXPECT_EQ(timeline.peaks[1], Bytes(10));
}

// Returns the kinds of the violations but for claims.
std::vector<ViolationKind> faults(std::vector<Action> actions, Machine machine = by_hand()) {
  Plan plan;
  plan.actions = std::move(actions);
  std::vector<ViolationKind> kinds;
  for (const Violation& violation : verify(two_ops(), plan, Bytes(36), machine)) {
    if (violation.kind != ViolationKind::kFalseClaim) kinds.push_back(violation.kind);
  }
  return kinds;
}

std::vector<Action> without(size_t action) {
  std::vector<Action> actions = moving();
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(action));
  return actions;
}

TEST(Copies, VerifyNamesEveryFault) {
  using Kinds = std::vector<ViolationKind>;
  EXPECT_EQ(faults(moving()), Kinds{});
  EXPECT_EQ(faults(without(2)), (Kinds{ViolationKind::kUnderWay, ViolationKind::kUnderWay}));
  EXPECT_EQ(faults(without(6)), (Kinds{ViolationKind::kUnderWay, ViolationKind::kUnderWay,
                                       ViolationKind::kUnderWay}));  // freed, read, freed
  EXPECT_EQ(faults(without(7)), Kinds{ViolationKind::kLeftOver});
  EXPECT_EQ(faults(without(3)), (Kinds{ViolationKind::kAlreadyThere}));
  std::vector<Action> actions = moving();
  actions[1].to = "disk";
  EXPECT_EQ(faults(actions).front(), ViolationKind::kUnknownId);
  Machine one_way = by_hand();
  one_way.channels.pop_back();
  EXPECT_EQ(faults(moving(), one_way).front(), ViolationKind::kUnknownId);
  Machine small = by_hand();
  small.memories[1].capacity = Bytes(9);
  EXPECT_EQ(faults(moving(), small), Kinds{ViolationKind::kOverBudget});
  actions = moving();
  actions[5].after = {5};
  EXPECT_EQ(faults(actions).front(), ViolationKind::kOrder);
  actions[5].after = {1};
  EXPECT_EQ(faults(actions), Kinds{});
}

TEST(Copies, SimulateRefusesWhatVerifyFinds) {
  for (const size_t left_out : {1, 2, 5, 6}) {
    EXPECT_THROW(simulate(two_ops(), without(left_out), by_hand()), InputError) << left_out;
  }
  EXPECT_THROW(simulate(two_ops(), moving()), InputError);  // the device alone
}

}  // namespace
}  // namespace reprise
