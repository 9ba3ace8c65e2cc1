// Defects that were in the schedules of graphs once.
#include "plan/graph_schedule.h"

#include <gtest/gtest.h>

#include "reprise/check/simulate.h"
#include "support/build_graph.h"

namespace reprise::testing {
namespace {

// d reads p and r. p is there, r is made again from q, and q by a variant that consumes p: d then ran
// without p.
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
  internal::ScheduleWalk walk(graph);
  internal::Schedule schedule = walk.keep_all();
  for (size_t g = 0; g < walk.gaps().size(); ++g) {
    const bool dropped = walk.gaps()[g].value == q || walk.gaps()[g].value == r;
    if (dropped) schedule.gaps[g] = internal::Keeping::kDrop;
  }
  schedule.on_demand[static_cast<size_t>(b)] = 1;
  ASSERT_TRUE(walk.walk(schedule));
  const Timeline timeline = simulate(graph, with_frees(graph, walk.runs()));
  EXPECT_EQ(timeline.peak.count(), walk.peak());
  EXPECT_EQ(timeline.time.count(), walk.time());
}

}  // namespace
}  // namespace reprise::testing
