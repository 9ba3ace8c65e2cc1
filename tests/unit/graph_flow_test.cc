// Tests flows of plans with copies on graphs that are written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plan/graph/schedule/ledger.h"
#include "plan/place/flow.h"
#include "reprise/check/simulate.h"
#include "support/build_graph.h"

namespace reprise::testing {
namespace {

using internal::place::FlowCost;
using internal::place::Flow;
using internal::place::kStays;
using internal::place::RunList;
using internal::place::LaneTimes;
using internal::schedule::ScheduleLedger;
using internal::schedule::ScheduleModel;

Action copied(const std::string& value, const std::string& from, const std::string& to) {
  return {ActionKind::kCopy, value, "", from, to};
}
Action waited(const std::string& value, const std::string& at) {
  return {ActionKind::kWait, value, "", at};
}
Action released(const std::string& value, const std::string& at) {
  return {ActionKind::kFree, value, "", at};
}

// a writes v; b needs much memory; c reads v; d needs much memory; e reads v.
Graph graph_with_two_gaps() {
  Graph graph;
  graph.name = "gaps";
  const ValueIndex v = add_value(graph, "v", 10), p = add_value(graph, "p", 1);
  const ValueIndex q = add_value(graph, "q", 1), r = add_value(graph, "r", 1);
  const ValueIndex z = add_value(graph, "z", 1);
  add_op(graph, "a", {make_variant(100, {}, {v})});
  add_op(graph, "b", {make_variant(100, {}, {p}, 50)});
  add_op(graph, "c", {make_variant(100, {v, p}, {q})});
  add_op(graph, "d", {make_variant(100, {q}, {r}, 50)});
  add_op(graph, "e", {make_variant(100, {v, r}, {z})});
  graph.results = {z};
  return graph;
}

// 10 bytes take 20 ns out and 40 ns back.
Machine slow_back() {
  Machine machine = parse_offload("host=0.5GB/s,0.25GB/s");
  for (Channel& channel : machine.channels) channel.latency = Nanos(0);
  return machine;
}

struct Built {
  FlowCost cost;
  std::vector<Action> actions;
};

Built build(const Graph& graph, const Machine& machine, int64_t budget, bool may_move = true) {
  const ScheduleModel model(graph);
  const LaneTimes lane_times(graph, machine);
  ScheduleLedger ledger(model);
  EXPECT_TRUE(ledger.assign(model.keep_all()));
  RunList runs;
  ledger.list(runs.op_variants, runs.positions);
  Flow flow(model, lane_times);
  const std::vector<int8_t> lanes(model.intervals().size(), may_move ? int8_t{0} : kStays);
  const FlowCost cost = flow.build(runs, lanes, budget);
  return {cost, flow.actions()};
}

TEST(GraphFlow, AValueThatLeavesTwiceIsSentOnce) {
  const Graph graph = graph_with_two_gaps();
  const Machine machine = slow_back();
  const Built built = build(graph, machine, 54);
  EXPECT_LE(built.cost.peak, 54);
  const std::vector<Action> expected = {run("a"),
                                        copied("v", "device", "host"),
                                        waited("v", "host"),
                                        release("v"),
                                        run("b"),
                                        copied("v", "host", "device"),
                                        waited("v", "device"),
                                        run("c"),
                                        release("p"),
                                        release("v"),
                                        run("d"),
                                        release("q"),
                                        copied("v", "host", "device"),
                                        waited("v", "device"),
                                        released("v", "host"),
                                        run("e"),
                                        release("v"),
                                        release("r")};
  EXPECT_EQ(built.actions, expected);
  // The compute stream waits 20 ns for the copy out, and twice 40 ns for a copy back.
  EXPECT_EQ(built.cost.time, 500 + 20 + 40 + 40);
  EXPECT_EQ(simulate(graph, built.actions, machine).time, Nanos(built.cost.time));
}

TEST(GraphFlow, NothingMovesWhereEverythingFits) {
  const Graph graph = graph_with_two_gaps();
  const Built built = build(graph, slow_back(), 62);
  EXPECT_EQ(built.cost.time, 500);
  EXPECT_TRUE(std::none_of(built.actions.begin(), built.actions.end(),
                           [](const Action& action) { return action.kind == ActionKind::kCopy; }));
}

// v leaves before c, for which the runs wait, and w before d. The copy of w follows that of v.
TEST(GraphFlow, AChannelIsNotIdleWhileCopiesWait) {
  Graph graph;
  graph.name = "two values";
  const ValueIndex v = add_value(graph, "v", 10), w = add_value(graph, "w", 10);
  const ValueIndex p = add_value(graph, "p", 1), q = add_value(graph, "q", 1);
  const ValueIndex z = add_value(graph, "z", 1);
  add_op(graph, "a", {make_variant(100, {}, {v})});
  add_op(graph, "b", {make_variant(100, {}, {w})});
  add_op(graph, "c", {make_variant(100, {}, {p}, 50)});
  add_op(graph, "d", {make_variant(100, {p}, {q}, 59)});
  add_op(graph, "e", {make_variant(100, {v, w, q}, {z})});
  graph.results = {z};
  Machine machine = parse_offload("host=0.05GB/s,0.25GB/s");
  for (Channel& channel : machine.channels) channel.latency = Nanos(0);
  const Built built = build(graph, machine, 61);
  EXPECT_EQ(built.cost.peak, 61);
  // v is sent from 100 to 300 ns and w from 300 to 500 ns; both come back in 80 ns.
  EXPECT_EQ(built.cost.time, 500 + 100 + 80 + 100);
  EXPECT_EQ(simulate(graph, built.actions, machine).time, Nanos(built.cost.time));
}

TEST(GraphFlow, WithoutALaneThePeakIsAboveTheBudget) {
  const Graph graph = graph_with_two_gaps();
  const Built built = build(graph, slow_back(), 54, false);
  EXPECT_EQ(built.cost.peak, 62);
  EXPECT_EQ(built.cost.at, 3);  // d, with v, q and r
}

TEST(GraphFlow, AMemoryHoldsNoMoreThanItsCapacity) {
  const Graph graph = graph_with_two_gaps();
  Machine machine = slow_back();
  machine.memories[1].capacity = Bytes(9);
  EXPECT_EQ(build(graph, machine, 54).cost.peak, 62);
  machine.memories[1].capacity = Bytes(10);
  EXPECT_LE(build(graph, machine, 54).cost.peak, 54);
}

}  // namespace
}  // namespace reprise::testing
