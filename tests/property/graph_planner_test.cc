// Checks what every planner of graphs promises, on random graphs. support/planner_matrix.h has the
// planners as rows. Failures print the seed and the instance as JSON.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "support/build_graph.h"
#include "support/graph_families.h"
#include "support/planner_matrix.h"
#include "support/planner_questions.h"
#include "support/some_rounding.h"

namespace reprise::testing {
namespace {

class GraphPlanners : public ::testing::TestWithParam<PlannerRow> {};

void expect_sound_plan(const Graph& graph, const PlanResult& result) {
  ASSERT_TRUE(result.plan.has_value());
  const Plan& plan = *result.plan;
  EXPECT_TRUE(verify(graph, plan, result.budget, problem_id(graph)).empty());
  EXPECT_LE(plan.peak, result.budget);
  EXPECT_LE(result.lower_bound, plan.time);
  if (result.termination == Termination::kOptimal) {
    EXPECT_EQ(plan.time, result.lower_bound);
  }
}

void expect_sound_refusal(const Graph& graph, const PlanResult& result) {
  EXPECT_FALSE(result.plan.has_value());
  ASSERT_TRUE(result.smallest_budget.has_value());
  EXPECT_GT(*result.smallest_budget, result.budget);
  EXPECT_TRUE(std::any_of(graph.ops.begin(), graph.ops.end(),
                          [&](const Op& op) { return op.id == result.blocking_op; }));
  const PlanResult enough = plan(graph, with(result.planner, *result.smallest_budget));
  EXPECT_TRUE(found(enough));
}

// In the class in_turn no op is put off: the first runs stand in the order of plain training.
TEST(GraphPlanner, OpsRunInTurnInTheClassOfThatName) {
  const auto in_order = [](const Graph& graph, const Plan& plan) {
    std::vector<bool> ran(graph.ops.size(), false);
    OpIndex last = -1;
    for (const Action& action : plan.actions) {
      if (action.kind != ActionKind::kRun) continue;
      const OpIndex op = find_op(graph, action.id);
      if (ran[op]) continue;
      if (op < last) return false;
      ran[op] = true;
      last = op;
    }
    return true;
  };
  int planned = 0, put_off = 0;
  for (GraphFamily family : graph_families()) {
    family.graphs = (family.graphs + 19) / 20;
    for_graphs(family, [&](const Graph& graph, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      const Bytes budget(static_cast<int64_t>(plain / 2 + random() % (plain / 2 + 2)));
      PlanOptions options = with("graph", budget);
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      const PlanResult all = plan(graph, options);
      put_off += all.plan && !in_order(graph, *all.plan);
      options.schedule_class = "in_turn";
      const PlanResult result = plan(graph, options);
      EXPECT_EQ(result.schedule_class, "in_turn");
      if (!result.plan) return;
      ++planned;
      expect_sound_plan(graph, result);
      EXPECT_TRUE(in_order(graph, *result.plan));
    });
  }
  EXPECT_GT(planned, 15);
  EXPECT_GT(put_off, 2);  // without the class
}

// A variant that is allowed in addition makes no plan slower, and none is used where it is not
// allowed.
TEST(GraphPlanner, AllowingMoreIsNeverSlower) {
  int both = 0, faster = 0;
  for (GraphFamily family : graph_families()) {
    family.graphs /= 5;
    for_graphs(family, [&](const Graph& exact, std::mt19937_64& random) {
      const Graph graph = some_rounding(exact, random);
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      const Bytes budget(static_cast<int64_t>(random() % (plain + 2)));
      PlanOptions options = with("graph", budget);
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      const auto result_of = [&](Exactness allow) -> std::optional<PlanResult> {
        options.allow = allow;
        try {
          return plan(graph, options);
        } catch (const InputError&) {
          return std::nullopt;  // some op has no exact way
        }
      };
      const auto less = result_of(Exactness::kBitwise), more = result_of(Exactness::kRounding);
      if (!less || !less->plan) return;
      ASSERT_TRUE(more && more->plan);
      EXPECT_LE(more->plan->time, less->plan->time);
      ++both;
      faster += more->plan->time < less->plan->time;
    });
  }
  EXPECT_GT(both, 25);
  EXPECT_GT(faster, 5);
}

TEST_P(GraphPlanners, PlansFitAndAreVerified) {
  for (GraphFamily family : graph_families()) {
    family.graphs /= 5 * GetParam().fewer;
    for_graphs(family, [](const Graph& graph, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      const Bytes budget(static_cast<int64_t>(random() % (plain + 2)));
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      const PlanResult result = plan(graph, with(GetParam().name, budget));
      EXPECT_EQ(result.budget, budget);
      EXPECT_EQ(result.planner, GetParam().name);
      if (found(result)) expect_sound_plan(graph, result);
      if (result.termination == Termination::kInfeasible) expect_sound_refusal(graph, result);
    });
  }
}

// A planner's statements about all plans speak of the whole budget.
TEST_P(GraphPlanners, LeaveAReserveWhereSomePlanDoes) {
  int left = 0;
  for (GraphFamily family : graph_families()) {
    family.graphs /= 10 * GetParam().fewer;
    for_graphs(family, [&](const Graph& graph, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      // The budget may be above plain training's peak, for a planner that has no other plan.
      const Bytes budget(static_cast<int64_t>(random() % (plain + plain / 2 + 2)));
      const Bytes reserve(static_cast<int64_t>(random() % (plain / 3 + 1)));
      const Bytes goal = budget - std::min(budget, reserve);
      SCOPED_TRACE("budget " + std::to_string(budget.count()) + ", reserve " +
                   std::to_string(reserve.count()));
      PlanOptions options = with(GetParam().name, budget);
      options.reserve = reserve;
      const PlanResult result = plan(graph, options);
      EXPECT_EQ(result.budget, budget);
      if (found(result)) expect_sound_plan(graph, result);
      const PlanResult whole = plan(graph, with(GetParam().name, budget));
      if (found(whole)) {
        EXPECT_LE(result.lower_bound, whole.plan->time);
      }
      if (!found(plan(graph, with(GetParam().name, goal)))) return;
      ASSERT_TRUE(found(result));
      EXPECT_LE(result.plan->peak, goal);
      ++left;
    });
  }
  EXPECT_GT(left, 0);
  PlanOptions wrong = with(GetParam().name, Bytes(1));
  wrong.reserve = Bytes(-1);
  EXPECT_THROW(plan(Graph{}, wrong), InputError);
}

TEST_P(GraphPlanners, AGraphWithoutOperationsHasOnePlan) {
  const Graph graph = parse_graph(R"({"format": "reprise.graph", "version": 1, "name": "none",
    "fixed_bytes": 100, "values": [{"id": "x", "bytes": 10, "kind": "input"}], "ops": [],
    "results": ["x"]})");
  const PlanResult enough = plan(graph, {.budget = Bytes(110), .planner = GetParam().name});
  EXPECT_EQ(enough.termination, Termination::kOptimal);
  expect_sound_plan(graph, enough);
  const PlanResult little = plan(graph, {.budget = Bytes(109), .planner = GetParam().name});
  EXPECT_EQ(little.termination, Termination::kInfeasible);
  EXPECT_EQ(little.smallest_budget, Bytes(110));
}

TEST_P(GraphPlanners, WithEnoughMemoryNothingRunsTwice) {
  for (GraphFamily family : graph_families()) {
    family.graphs /= 5 * GetParam().fewer;
    for_graphs(family, [](const Graph& graph, std::mt19937_64&) {
      const Baseline plain = baseline(graph);
      const PlanResult result = plan(graph, with(GetParam().name, plain.peak));
      expect_sound_plan(graph, result);
      EXPECT_LE(result.plan->time, plain.time);
    });
  }
}

TEST_P(GraphPlanners, TheSameQuestionHasTheSameAnswer) {
  for (GraphFamily family : graph_families()) {
    family.graphs /= 20 * GetParam().fewer;
    for_graphs(family, [](const Graph& graph, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      const Bytes budget(static_cast<int64_t>(plain - random() % (plain / 4 + 1)));
      const PlanResult first = plan(graph, with(GetParam().name, budget));
      const PlanResult second = plan(graph, with(GetParam().name, budget));
      EXPECT_EQ(first.termination, second.termination);
      EXPECT_EQ(first.plan.has_value(), second.plan.has_value());
      if (first.plan && second.plan) {
        EXPECT_EQ(first.plan->actions, second.plan->actions);
      }
    });
  }
}

TEST_P(GraphPlanners, StopsInTimeWithoutAWrongAnswer) {
  for (GraphFamily family : graph_families()) {
    family.graphs /= 10 * GetParam().fewer;
    for_graphs(family, [](const Graph& graph, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      PlanOptions ask = with(GetParam().name, Bytes(static_cast<int64_t>(random() % (plain + 2))));
      ask.time_limit = Nanos(0);
      const PlanResult result = plan(graph, ask);
      if (found(result)) expect_sound_plan(graph, result);
      if (result.termination == Termination::kTimeLimit) {
        EXPECT_FALSE(result.plan.has_value());
      }
      if (result.termination == Termination::kInfeasible) expect_sound_refusal(graph, result);
    });
  }
}

TEST(GraphPlanner, IsNeverSlowerThanTheSimplerOnes) {
  int64_t asked = 0, faster = 0, alone = 0;
  for (GraphFamily family : graph_families()) {
    family.graphs /= 5;
    family.seed = 2;
    for_graphs(family, [&](const Graph& graph, std::mt19937_64& random) {
      const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
      const Bytes budget(static_cast<int64_t>(plain - random() % (plain / 3 + 1)));
      const PlanResult best = plan(graph, with("graph", budget));
      const PlanResult online = plan(graph, with("dtr", budget));
      const PlanResult keep = plan(graph, with("keep_all", budget));
      for (const PlanResult* other : {&online, &keep}) {
        if (!other->plan) continue;
        ASSERT_TRUE(best.plan.has_value());
        EXPECT_LE(best.plan->time, other->plan->time);
      }
      asked += best.plan.has_value();
      faster += best.plan && online.plan && best.plan->time < online.plan->time;
      alone += best.plan && !online.plan;
    });
  }
  std::cout << "of " << asked << " plans of graph, " << faster << " are faster than dtr's, "
            << alone << " are for budgets at which dtr has none\n";
}

// Makes the forward and backward of equal blocks of three ops. The second op is cheap, and its
// output is large.
Graph equal_blocks(int blocks) {
  Graph graph;
  ValueIndex x = add_value(graph, "x", 4, ValueKind::kInput);
  struct Block {
    ValueIndex in, a, b;
  };
  std::vector<Block> saved;
  for (int k = 0; k < blocks; ++k) {
    const std::string id = std::to_string(k);
    const ValueIndex a = add_value(graph, "a" + id, 8), b = add_value(graph, "b" + id, 12);
    const ValueIndex out = add_value(graph, "x" + id, 4);
    add_op(graph, "A" + id, {make_variant(40, {x}, {a})});
    add_op(graph, "B" + id, {make_variant(5, {a}, {b})});
    add_op(graph, "C" + id, {make_variant(60, {b, x}, {out})});
    saved.push_back({x, a, b});
    x = out;
  }
  ValueIndex g = add_value(graph, "g", 4, ValueKind::kGradient);
  add_op(graph, "loss", {make_variant(10, {x}, {g})}, Phase::kLoss);
  for (int k = blocks; k-- > 0;) {
    const Block& of = saved[static_cast<size_t>(k)];
    const ValueIndex before = add_value(graph, "g" + std::to_string(k), 4, ValueKind::kGradient);
    add_op(graph, "back" + std::to_string(k), {make_variant(200, {g, of.in, of.a, of.b}, {before})},
           Phase::kBackward);
    g = before;
  }
  graph.results = {g};
  return graph;
}

TEST(GraphPlanner, IsNearTheBoundOnManyEqualBlocks) {
  const Graph graph = equal_blocks(300);
  for (const char* budget : {"75%", "50%", "30%"}) {
    PlanOptions ask;
    ask.budget = budget;
    const PlanResult result = plan(graph, ask);
    expect_sound_plan(graph, result);
    EXPECT_LE(100 * result.plan->time.count(), 101 * result.lower_bound.count()) << budget;
  }
}

TEST(GraphPlanner, AStopIsTheEndOfItsTime) {
  const Graph graph = equal_blocks(30);
  PlanOptions ask;
  ask.budget = "40%";
  ask.time_limit = Nanos(0);
  ask.threads = 1;
  const PlanResult without_time = plan(graph, ask);
  ask.time_limit = Nanos(3'600'000'000'000);
  const PlanResult with_time = plan(graph, ask);
  std::stop_source stop;
  stop.request_stop();
  ask.stop = stop.get_token();
  const PlanResult stopped = plan(graph, ask);
  EXPECT_EQ(stopped.termination, without_time.termination);
  ASSERT_EQ(stopped.plan.has_value(), without_time.plan.has_value());
  if (stopped.plan) {
    EXPECT_EQ(stopped.plan->actions, without_time.plan->actions);
  }
  ASSERT_TRUE(with_time.plan.has_value());
  EXPECT_TRUE(!stopped.plan || stopped.plan->time > with_time.plan->time);
}

TEST(GraphPlanner, TheNumberOfThreadsDoesNotChangeTheAnswer) {
  PlanOptions ask;
  ask.budget = "40%";
  ask.time_limit = Nanos(3'600'000'000'000);
  ask.threads = 1;
  const Graph graph = equal_blocks(30);
  const PlanResult one = plan(graph, ask);
  ASSERT_TRUE(one.plan.has_value());
  for (const int threads : {2, 4}) {
    ask.threads = threads;
    const PlanResult several = plan(graph, ask);
    ASSERT_TRUE(several.plan.has_value());
    EXPECT_EQ(several.plan->actions, one.plan->actions) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, GraphPlanners, ::testing::ValuesIn(graph_planner_rows()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace reprise::testing
