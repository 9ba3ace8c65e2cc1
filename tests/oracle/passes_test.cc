// These steps go forward and backward several times, as steps in parts along the batch do.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "oracle/exhaustive.h"
#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/starts/sections.h"
#include "reprise/check/simulate.h"
#include "reprise/plan/plan.h"

namespace reprise::testing {
namespace {

class Passes {
 public:
  explicit Passes(int count) {
    graph_.name = "passes";
    const ValueIndex input = value("x", 0, ValueKind::kInput);
    for (int pass = 0; pass < count; ++pass) add_pass("pass" + std::to_string(pass) + ".", input);
    // This op is behind all passes and reads a value of each, as the sum of their losses does.
    op("sum", Phase::kForward, 1, counts_, value("all", 0, ValueKind::kActivation));
    graph_.results.push_back(static_cast<ValueIndex>(graph_.values.size() - 1));
    validate(graph_);
  }

  Graph graph() const { return graph_; }

 private:
  ValueIndex value(const std::string& id, int64_t bytes, ValueKind kind) {
    graph_.values.push_back({id, Bytes(bytes), kind});
    return static_cast<ValueIndex>(graph_.values.size() - 1);
  }

  void op(const std::string& id, Phase phase, int64_t time, std::vector<ValueIndex> reads,
          ValueIndex written) {
    Variant variant;
    variant.name = "k";
    variant.time = Nanos(time);
    variant.reads = std::move(reads);
    variant.writes = {written};
    Op op;
    op.id = id;
    op.phase = phase;
    op.variants = {variant};
    graph_.ops.push_back(op);
  }

  void add_pass(const std::string& name, ValueIndex input) {
    constexpr int kLayers = 4;
    std::vector<ValueIndex> kept{input};
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string id = name + "f" + std::to_string(layer);
      const ValueIndex made = value(id + ".out", 10 + layer, ValueKind::kActivation);
      op(id, Phase::kForward, 100 + 10 * layer, {kept.back()}, made);
      kept.push_back(made);
    }
    counts_.push_back(value(name + "count", 0, ValueKind::kActivation));
    op(name + "counted", Phase::kForward, 1, {kept.back()}, counts_.back());
    ValueIndex gradient = value(name + "g", 1, ValueKind::kGradient);
    op(name + "loss", Phase::kLoss, 1, {kept.back()}, gradient);
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const ValueIndex before = gradient;
      gradient =
          value(name + "g" + std::to_string(layer), layer == 0 ? 0 : 1, ValueKind::kGradient);
      op(name + "b" + std::to_string(layer), Phase::kBackward, 200, {before, kept[layer + 1]},
         gradient);
    }
    graph_.results.push_back(gradient);
  }

  Graph graph_;
  std::vector<ValueIndex> counts_;
};

// Leaves out the one op behind all passes.
int64_t least_time_of_one_pass(int64_t budget) {
  return *least_time_of_any_plan(Passes(1).graph(), budget) - 1;
}

constexpr Nanos kLong(600'000'000'000);

class StepsOfPasses : public ::testing::TestWithParam<int> {};

TEST_P(StepsOfPasses, ArePlannedAsWellAsOnePass) {
  const Graph graph = Passes(GetParam()).graph();
  for (const int64_t budget : {48, 40, 36, 30}) {
    SCOPED_TRACE(budget);
    const PlanResult result =
        plan(graph, {.budget = Bytes(budget), .planner = "graph", .time_limit = kLong});
    ASSERT_TRUE(result.plan);
    EXPECT_LE(result.plan->peak, Bytes(budget));
    EXPECT_EQ(result.plan->time.count(), GetParam() * least_time_of_one_pass(budget) + 1);
  }
}

// The search starts near the best schedule, before it improves anything.
TEST_P(StepsOfPasses, StartNearTheBest) {
  const Graph graph = Passes(GetParam()).graph();
  const internal::schedule::ScheduleModel model(graph);
  const internal::common::GraphFacts facts(graph);
  const internal::common::SearchControl control =
      internal::common::SearchControl({}, "test").untimed();
  internal::schedule::ScheduleLedger ledger(model);
  for (const int64_t budget : {48, 40, 36}) {
    SCOPED_TRACE(budget);
    const auto start = internal::starts::schedule_of_sections(model, model.keep_all(), facts,
                                                              Bytes(budget), control);
    ASSERT_TRUE(start);
    ASSERT_TRUE(ledger.assign(*start));
    EXPECT_LE(ledger.peak(), budget);
    EXPECT_LE(ledger.time(), (GetParam() * least_time_of_one_pass(budget) + 1) * 11 / 10);
  }
}

// Each pass makes values of its own again, so the bounds of the passes add up.
TEST_P(StepsOfPasses, HaveBoundsThatAddUp) {
  const Graph graph = Passes(GetParam()).graph();
  const int64_t budget = 36;
  const PlanResult result =
      plan(graph, {.budget = Bytes(budget), .planner = "graph", .time_limit = kLong});
  internal::common::SearchControl control = internal::common::SearchControl({}, "test").untimed();
  const int64_t single = internal::bound::bound_graph(graph, Bytes(budget), control).time.count();
  int64_t first_runs = 0;
  for (const Op& op : graph.ops) first_runs += op.variants[0].time.count();
  ASSERT_TRUE(result.plan);
  ASSERT_GT(single, first_runs);
  EXPECT_GE(result.plan->lower_bound.count() - first_runs,
            std::min(GetParam(), 6) * (single - first_runs));
  EXPECT_LE(result.plan->lower_bound, result.plan->time);
}

INSTANTIATE_TEST_SUITE_P(Counts, StepsOfPasses, ::testing::Values(2, 3, 8, 64));

}  // namespace
}  // namespace reprise::testing
