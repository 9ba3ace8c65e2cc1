// Tests messages, the copies whose two ends are at different places of a plan: times and bytes by
// hand, every fault, and the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

constexpr ActionKind kRun = ActionKind::kRun, kFree = ActionKind::kFree, kWait = ActionKind::kWait,
                     kCopy = ActionKind::kCopy, kSend = ActionKind::kSend,
                     kReceive = ActionKind::kReceive;

// 1 byte a nanosecond from a to b, with a latency of 4 ns.
Machine two_devices() {
  Machine machine;
  machine.memories = {{"a"}, {"b", std::nullopt, true}};
  machine.channels = {{0, 1, 1'000'000'000, Nanos(4)}};
  return machine;
}

Graph three_ops() {
  return parse_graph(R"({"format": "reprise.graph", "version": 3, "name": "three",
    "values": [{"id": "in", "bytes": 1, "kind": "input"}, {"id": "x", "bytes": 10},
               {"id": "z", "bytes": 30}, {"id": "y", "bytes": 20}],
    "ops": [{"id": "long", "variants": [{"ns": 30, "at": "b"}]},
            {"id": "f", "variants": [{"ns": 3, "reads": ["in"], "writes": ["x"]}]},
            {"id": "k", "variants": [{"ns": 40, "reads": ["in"], "writes": ["z"]}]},
            {"id": "h", "variants": [{"ns": 7, "reads": ["x"], "writes": ["y"], "at": "b"}]}],
    "results": ["z"]})");
}

std::vector<Action> message() {
  return {{kReceive, "x", "", "a", "b"}, {kRun, "long", "default"}, {kRun, "f", "default"},
          {kSend, "x", "", "a", "b"},    {kRun, "k", "default"},    {kWait, "x", "", "b"},
          {kRun, "h", "default"},        {kWait, "x", "", "a"},     {kFree, "x", ""},
          {kFree, "x", "", "b"},         {kFree, "y", "", "b"}};
}

std::vector<Action> moved(size_t from, size_t to) {
  std::vector<Action> actions = message();
  const Action action = actions[from];
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
  actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), action);
  return actions;
}

std::vector<Action> without_ends(std::vector<size_t> left_out) {
  std::vector<Action> actions = message();
  std::ranges::sort(left_out, std::greater());
  for (const size_t a : left_out) actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(a));
  return actions;
}

std::vector<ViolationKind> message_faults(const std::vector<Action>& actions) {
  Plan plan;
  plan.actions = actions;
  std::vector<ViolationKind> kinds;
  for (const Violation& one : verify(three_ops(), plan, Bytes(1000), two_devices())) {
    if (one.kind != ViolationKind::kFalseClaim) kinds.push_back(one.kind);
  }
  return kinds;
}

TEST(Messages, TimesAndBytesByHand) {
  const Timeline early = simulate(three_ops(), message(), two_devices());
  ASSERT_EQ(early.transfers.size(), 1u);
  EXPECT_EQ(early.transfers[0].action, 3);
  EXPECT_EQ(early.transfers[0].issued, Nanos(3));
  EXPECT_EQ(early.transfers[0].end, Nanos(17));
  EXPECT_EQ(early.steps[5].time, Nanos(0));  // The device b is busy until 30.
  EXPECT_EQ(early.time, Nanos(43));
  EXPECT_EQ(early.peaks, (std::vector<Bytes>{Bytes(41), Bytes(30)}));
  // Room is made behind the long run: both ends wait.
  const Timeline late = simulate(three_ops(), moved(0, 1), two_devices());
  EXPECT_EQ(late.transfers[0].issued, Nanos(30));
  EXPECT_EQ(late.transfers[0].end, Nanos(44));
  EXPECT_EQ(late.steps[5].time, Nanos(14));
  EXPECT_EQ(late.steps[7].time, Nanos(1));
  EXPECT_EQ(late.time, Nanos(51));
  // Either end may come first in the plan, and the times are the same.
  EXPECT_EQ(simulate(three_ops(), moved(0, 4), two_devices()).transfers[0].end, Nanos(44));
  EXPECT_EQ(message_faults(moved(0, 4)), message_faults(message()));
}

TEST(Messages, VerifyNamesEveryFault) {
  using Kinds = std::vector<ViolationKind>;
  constexpr ViolationKind kUnmatched = ViolationKind::kUnmatched;
  const auto finds = [](const std::vector<Action>& actions, ViolationKind kind) {
    EXPECT_THROW(simulate(three_ops(), actions, two_devices()), InputError);
    return std::ranges::count(message_faults(actions), kind) > 0;
  };
  EXPECT_EQ(message_faults(message()), Kinds{});
  EXPECT_EQ(message_faults(without_ends({7})), Kinds{});  // The other end has waited.
  EXPECT_TRUE(finds(without_ends({5, 7}), ViolationKind::kUnderWay));
  std::vector<Action> actions = moved(7, 4);
  EXPECT_EQ(message_faults(actions), Kinds{});
  actions.erase(actions.begin() + 6);  // The sender has waited, but what reads the value has not.
  EXPECT_TRUE(finds(actions, ViolationKind::kUnderWay));
  EXPECT_TRUE(finds(without_ends({0}), ViolationKind::kNotLive));
  EXPECT_TRUE(finds(without_ends({3}), kUnmatched));
  EXPECT_TRUE(finds(moved(5, 3), kUnmatched));  // a wait that no channel can end
  actions = message();
  actions.insert(actions.begin() + 4, actions[3]);
  EXPECT_EQ(message_faults(actions).back(), kUnmatched);  // the second send has no room
  actions = message();
  actions.insert(actions.begin() + 1, actions[0]);
  EXPECT_TRUE(finds(actions, ViolationKind::kAlreadyThere));
  // A copy of the input stands behind a message for which there is no room yet.
  actions = moved(0, 3);
  actions.insert(actions.begin() + 3, {kCopy, "in", "", "a", "b"});
  EXPECT_TRUE(finds(actions, kUnmatched));
  actions = without_ends({0, 5, 6, 7, 8, 9, 10});
  EXPECT_EQ(message_faults(actions).back(), ViolationKind::kLeftOver);
  EXPECT_EQ(std::ranges::count(message_faults(actions), kUnmatched), 1);  // a send alone
}

TEST(Messages, AreWrittenAndReadBack) {
  Plan plan;
  plan.problem = {.format = "reprise.graph", .name = "three", .sha256 = {}};
  plan.machine_sha256 = std::string(64, 'b');
  plan.actions = message();
  const std::string text = to_json(plan);
  EXPECT_NE(text.find(R"(["receive", "x", "a", "b"])"), std::string::npos) << text;
  EXPECT_EQ(parse_plan(text), plan);
}

}  // namespace
}  // namespace reprise
