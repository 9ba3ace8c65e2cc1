// A schedule that is carried over to a graph with more ways to do the same costs what it did.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "plan/common/admissible.h"
#include "plan/graph/carry.h"
#include "plan/graph/question.h"
#include "plan/graph/schedule/ledger.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "support/graph_families.h"
#include "support/planner_questions.h"
#include "support/some_rounding.h"

namespace reprise::testing {
namespace {

using internal::common::SearchControl;
using internal::graph::GraphFinding;
using internal::schedule::Schedule;
using internal::schedule::ScheduleLedger;
using internal::schedule::ScheduleModel;

// A variant that takes this much longer is never the fastest. So ops that run again keep their
// fastest variant.
constexpr Nanos kLonger(1'000'000);

// Removes variants that round. Returns nothing if that leaves an op without a variant.
std::optional<Graph> exact(const Graph& graph) {
  try {
    Graph rest = internal::common::restrict_exactness(graph, Exactness::kBitwise);
    ScheduleModel model(rest);  // has plain training
    return rest;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

TEST(GraphCarry, CostsStay) {
  int carried = 0, smaller = 0, changed = 0;
  for (GraphFamily family : graph_families()) {
    family.graphs /= 3;
    for_graphs(family, [&](const Graph& plain, std::mt19937_64& random) {
      const Graph graph = some_rounding(plain, random, kLonger);
      const std::optional<Graph> rest = exact(graph);
      if (!rest) return;
      const ScheduleModel from(*rest), to(graph);
      const auto peak = static_cast<uint64_t>(baseline(*rest).peak.count());
      const Bytes budget(static_cast<int64_t>(peak / 3 + random() % (peak + 1)));
      SearchControl control(PlanOptions{}, "graph");
      const GraphFinding found =
          internal::graph::find_schedule(from, budget, budget, /*threads=*/1, {}, control, {});
      const auto& one = found.best ? *found.best : found.smallest;
      const std::optional<Schedule> same = internal::graph::carried_over(from, one.schedule, to);
      ASSERT_TRUE(same.has_value());
      ScheduleLedger ledger(to);
      ASSERT_TRUE(ledger.assign(*same));
      EXPECT_EQ(ledger.time(), one.time);
      EXPECT_EQ(ledger.peak(), one.peak);
      ++carried;
      smaller += rest->ops.size() < graph.ops.size();
      changed += one.schedule != from.keep_all();
    });
  }
  EXPECT_GT(carried, 300);
  EXPECT_GT(smaller, 100);
  EXPECT_GT(changed, 100);
}

TEST(GraphCarry, NothingIsCarriedWhereTheOpsAreNot) {
  std::mt19937_64 random(3);
  const Graph graph = random_graph(random);
  Graph other = graph;
  other.ops.front().id += "'";
  const ScheduleModel from(graph), to(other);
  EXPECT_EQ(internal::graph::carried_over(from, from.keep_all(), to), std::nullopt);
  EXPECT_EQ(internal::graph::carried_over(from, from.keep_all(), from), from.keep_all());
}

}  // namespace
}  // namespace reprise::testing
