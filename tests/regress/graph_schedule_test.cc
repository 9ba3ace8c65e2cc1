// These defects were in the schedules of graphs once.
#include <gtest/gtest.h>

#include "plan/graph/schedule/ledger.h"
#include "reprise/check/simulate.h"
#include "support/build_graph.h"

namespace reprise::testing {
namespace {

// d reads p and r. p is live, r is made again from q, and q by a variant that consumes p. d then
// ran without p.
TEST(GraphSchedule, WhatAReRunTakesIsMadeAgainForARunThatWaits) {
  Graph graph;
  const ValueIndex x = add_value(graph, "x", 1, ValueKind::kInput);
  const ValueIndex p = add_value(graph, "p", 2), q = add_value(graph, "q", 3);
  const ValueIndex r = add_value(graph, "r", 4), s = add_value(graph, "s", 5);
  add_op(graph, "a", {make_variant(1, {x}, {p})});
  Variant consuming = make_variant(1, {p}, {q});
  consuming.name = "consuming";
  consuming.consumes = {p};
  const OpIndex b = add_op(graph, "b", {make_variant(2, {p}, {q}), consuming});
  add_op(graph, "c", {make_variant(1, {q}, {r})});
  add_op(graph, "d", {make_variant(1, {p, r}, {s})}, Phase::kBackward);
  graph.results = {s};
  const internal::schedule::ScheduleModel model(graph);
  internal::schedule::Schedule schedule = model.keep_all();
  for (size_t g = 0; g < model.intervals().size(); ++g) {
    const bool dropped = model.intervals()[g].value == q || model.intervals()[g].value == r;
    if (dropped) schedule.intervals[g] = internal::schedule::Keeping::kDrop;
  }
  schedule.on_demand[static_cast<size_t>(b)] = 1;
  internal::schedule::ScheduleLedger ledger(model);
  ASSERT_TRUE(ledger.assign(schedule));
  const Timeline timeline = simulate(graph, with_frees(graph, ledger.runs()));
  EXPECT_EQ(timeline.peak.count(), ledger.peak());
  EXPECT_EQ(timeline.time.count(), ledger.time());
}

// One realization uses up a gradient where it appears, and plain training's does so at the end.
// Both are equally fast. The choice was not seen as one that frees memory, because the first
// realization has more runs.
TEST(GraphSchedule, LeanSchedulesTakeRealizationsThatCostNothingAndHoldLess) {
  for (const int64_t update : {5, 6}) {
    Graph graph;
    const ValueIndex x = add_value(graph, "x", 1, ValueKind::kInput);
    const ValueIndex y = add_value(graph, "y", 2), g = add_value(graph, "g", 40);
    const ValueIndex h = add_value(graph, "h", 3);
    add_op(graph, "forward", {make_variant(10, {x}, {y})});
    add_op(graph, "first", {make_variant(10, {y}, {g})}, Phase::kBackward);
    const OpIndex early =
        add_op(graph, "update", {make_variant(update, {g}, {})}, Phase::kBackward);
    add_op(graph, "second", {make_variant(10, {y}, {h}, 50)}, Phase::kBackward);
    const OpIndex late = add_op(graph, "end", {make_variant(5, {g}, {})}, Phase::kBackward);
    graph.results = {h};
    graph.choices = {{"end", {{"", {late}}, {"early", {early}}}}};
    const internal::schedule::ScheduleModel model(graph);
    internal::schedule::Schedule expected = model.keep_all();
    if (update == 5) expected.realization[0] = 1;
    EXPECT_EQ(model.lean(), expected) << update;
  }
}

}  // namespace
}  // namespace reprise::testing
