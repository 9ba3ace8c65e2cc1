// Checks what every planner of chains promises, on random chains. support/planner_matrix.h has the
// planners as rows. Failures print the seed and the instance as JSON.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/registry.h"
#include "reprise/run/bookkeeping.h"
#include "reprise/run/interpreter.h"
#include "support/planner_matrix.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"

namespace reprise::testing {
namespace {

class ChainPlanners : public ::testing::TestWithParam<PlannerRow> {};

void expect_sound_plan(const Chain& chain, const Graph& graph, const PlanResult& result) {
  ASSERT_TRUE(result.plan.has_value());
  const Plan& plan = *result.plan;
  EXPECT_TRUE(verify(graph, plan, result.budget, problem_id(chain)).empty());
  const Timeline timeline = simulate(graph, plan);
  EXPECT_EQ(timeline.peak, plan.peak);
  EXPECT_EQ(timeline.time, plan.time);
  EXPECT_LE(plan.peak, result.budget);
  EXPECT_LE(result.lower_bound, plan.time);
  EXPECT_EQ(plan.lower_bound, result.lower_bound);
  EXPECT_EQ(plan.baseline, baseline(graph));
  if (result.termination == Termination::kOptimal) {
    EXPECT_EQ(plan.time, result.lower_bound);
  }
  BookkeepingBackend books(graph);
  execute(Program(graph, plan.actions), books);
  EXPECT_EQ(books.peak(), plan.peak);
  EXPECT_EQ(books.time(), plan.time);
}

void expect_sound_refusal(const Chain& chain, const Graph& graph, const PlanResult& result) {
  EXPECT_FALSE(result.plan.has_value());
  ASSERT_TRUE(result.smallest_budget.has_value());
  EXPECT_GT(*result.smallest_budget, result.budget);
  EXPECT_TRUE(std::any_of(graph.ops.begin(), graph.ops.end(),
                          [&](const Op& op) { return op.id == result.blocking_op; }));
  const PlanResult enough = plan(chain, with(result.planner, *result.smallest_budget));
  EXPECT_TRUE(found(enough));
  EXPECT_EQ(enough.plan->peak, *result.smallest_budget);
  const PlanResult short_by_one =
      plan(chain, with(result.planner, *result.smallest_budget - Bytes(1)));
  EXPECT_EQ(short_by_one.termination, Termination::kInfeasible);
  EXPECT_EQ(short_by_one.smallest_budget, result.smallest_budget);
}

TEST_P(ChainPlanners, PlannedIsSimulatedIsVerifiedOrInfeasibleWithTheSmallestBudget) {
  for_chains(1, 300, any_chain(8), [](const Chain& chain, std::mt19937_64& random) {
    const Graph graph = lower(chain);
    const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
    for (int draw = 0; draw < 3; ++draw) {
      const Bytes budget(static_cast<int64_t>(random() % (plain + 2)));
      const PlanResult result = plan(chain, with(GetParam().name, budget));
      SCOPED_TRACE("budget " + std::to_string(budget.count()));
      EXPECT_EQ(result.budget, budget);
      EXPECT_EQ(result.planner, GetParam().name);
      if (found(result)) {
        expect_sound_plan(chain, graph, result);
        if (GetParam().optimal) {
          EXPECT_EQ(result.termination, Termination::kOptimal);
        }
      } else {
        ASSERT_EQ(result.termination, Termination::kInfeasible);
        expect_sound_refusal(chain, graph, result);
      }
    }
  });
}

TEST_P(ChainPlanners, MoreMemoryIsNeverSlower) {
  for_chains(2, 60, any_chain(6), [](const Chain& chain, std::mt19937_64&) {
    const int64_t plain = baseline(lower(chain)).peak.count();
    bool fits = false;
    Nanos before;
    for (int64_t budget = 0; budget <= plain + 1; ++budget) {
      const PlanResult result = plan(chain, with(GetParam().name, Bytes(budget)));
      EXPECT_TRUE(found(result) || !fits) << "budget " << budget;
      if (!found(result)) continue;
      if (fits) {
        EXPECT_LE(result.plan->time, before) << "budget " << budget;
      }
      before = result.plan->time;
      fits = true;
    }
  });
}

void scale(Bytes& bytes, int64_t factor) { bytes = bytes * factor; }
void scale(Cost& cost, int64_t bytes, int64_t times) {
  cost = {cost.time * times, cost.workspace * bytes};
}

Chain scaled(Chain chain, int64_t bytes, int64_t times) {
  scale(chain.fixed, bytes);
  scale(chain.input.bytes, bytes);
  scale(chain.input.gradient, bytes);
  scale(chain.loss.cost, bytes, times);
  for (Stage& stage : chain.stages) {
    scale(stage.output, bytes);
    if (stage.output_gradient) scale(*stage.output_gradient, bytes);
    scale(stage.weight_gradient, bytes);
    scale(stage.forward, bytes, times);
    for (StageOption& option : stage.options) {
      scale(option.saved, bytes);
      scale(option.forward, bytes, times);
      scale(option.backward, bytes, times);
    }
  }
  return chain;
}

TEST_P(ChainPlanners, CurvesScaleWithMemoryAndTime) {
  if (!GetParam().curve) GTEST_SKIP() << "has no curve";
  for_chains(3, 100, any_chain(7), [](const Chain& chain, std::mt19937_64&) {
    constexpr int64_t kBytes = 1'000'003, kTimes = 30'011;
    const Frontier small = frontier(chain, with(GetParam().name, Bytes()));
    const Frontier large = frontier(scaled(chain, kBytes, kTimes), with(GetParam().name, Bytes()));
    ASSERT_EQ(small.points.size(), large.points.size());
    for (size_t p = 0; p < small.points.size(); ++p) {
      EXPECT_EQ(small.points[p].budget * kBytes, large.points[p].budget);
      EXPECT_EQ(small.points[p].time * kTimes, large.points[p].time);
    }
  });
}

TEST_P(ChainPlanners, FrontierPointsEqualSingleSolves) {
  if (!GetParam().curve) GTEST_SKIP() << "has no curve";
  for_chains(4, 100, any_chain(7), [](const Chain& chain, std::mt19937_64&) {
    const Frontier curve = frontier(chain, with(GetParam().name, Bytes()));
    EXPECT_EQ(curve.planner, GetParam().name);
    EXPECT_EQ(curve.problem, problem_id(chain));
    ASSERT_FALSE(curve.points.empty());
    const PlanResult none =
        plan(chain, with(GetParam().name, std::max(curve.points[0].budget - Bytes(1), Bytes())));
    if (curve.points[0].budget > Bytes()) {
      EXPECT_EQ(none.termination, Termination::kInfeasible);
    }
    for (size_t p = 0; p < curve.points.size(); ++p) {
      const FrontierPoint& point = curve.points[p];
      const PlanResult at = plan(chain, with(GetParam().name, point.budget));
      ASSERT_TRUE(found(at));
      EXPECT_EQ(at.plan->time, point.time);
      EXPECT_EQ(at.plan->peak, point.peak);
      EXPECT_EQ(at.lower_bound, point.lower_bound);
      if (p == 0) continue;
      EXPECT_LT(curve.points[p - 1].budget, point.budget);
      EXPECT_GT(curve.points[p - 1].time, point.time);
      const PlanResult below = plan(chain, with(GetParam().name, point.budget - Bytes(1)));
      EXPECT_EQ(below.plan->time, curve.points[p - 1].time);
    }
  });
}

TEST_P(ChainPlanners, TheSameQuestionHasTheSameAnswer) {
  for_chains(5, 50, any_chain(8), [](const Chain& chain, std::mt19937_64&) {
    PlanResult first = plan(chain, with(GetParam().name, Budget().resolve(Bytes())));
    PlanResult second = plan(chain, with(GetParam().name, Budget().resolve(Bytes())));
    ASSERT_TRUE(first.plan && second.plan);
    EXPECT_EQ(first.plan->actions, second.plan->actions);
  });
}

TEST_P(ChainPlanners, InexactOptionsAreUsedOnlyWhenAllowed) {
  RandomChainOptions options = any_chain(6);
  options.inexact_options = true;
  for_chains(6, 100, options, [](const Chain& chain, std::mt19937_64&) {
    const Graph graph = lower(chain);
    for (const Exactness allowed :
         {Exactness::kBitwise, Exactness::kRounding, Exactness::kApproximate}) {
      PlanOptions ask = with(GetParam().name, Budget().resolve(Bytes()));
      ask.allow = allowed;
      const PlanResult result = plan(chain, ask);
      ASSERT_TRUE(result.plan.has_value());
      for (const BoundAction& action : bind(graph, result.plan->actions)) {
        if (action.kind != ActionKind::kRun) continue;
        const Op& op = graph.ops[static_cast<size_t>(action.target)];
        EXPECT_LE(op.variants[static_cast<size_t>(action.variant)].exactness, allowed);
      }
    }
  });
}

TEST_P(ChainPlanners, StopsInTimeWithoutAWrongAnswer) {
  for_chains(7, 60, any_chain(8), [](const Chain& chain, std::mt19937_64& random) {
    const Graph graph = lower(chain);
    const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
    PlanOptions ask = with(GetParam().name, Bytes(static_cast<int64_t>(random() % (plain + 2))));
    ask.time_limit = Nanos(0);
    const PlanResult result = plan(chain, ask);
    if (found(result)) expect_sound_plan(chain, graph, result);
    if (result.termination == Termination::kTimeLimit) {
      EXPECT_FALSE(result.plan.has_value());
    }
    if (result.termination == Termination::kInfeasible) {
      expect_sound_refusal(chain, graph, result);
    }
  });
}

TEST_P(ChainPlanners, ExceptionsOfTheObserverPassThrough) {
  struct Stop {};
  std::mt19937_64 random(8);
  RandomChainOptions options = one_option(40);
  options.min_stages = 40;
  const Chain chain = random_chain(random, options);
  PlanOptions ask = with(GetParam().name, Budget().resolve(Bytes()));
  int calls = 0;
  ask.observer = [&](const Progress& progress) {
    ++calls;
    EXPECT_EQ(progress.task, "plan");
    EXPECT_LE(progress.fraction, 1);
    throw Stop{};
  };
  if (GetParam().reports) {
    EXPECT_THROW(plan(chain, ask), Stop)
        << "SearchControl::report() was not called; if the planner "
           "has nothing to report, its row says so";
    EXPECT_EQ(calls, 1);
  } else {
    EXPECT_TRUE(plan(chain, ask).plan.has_value());
    EXPECT_EQ(calls, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, ChainPlanners, ::testing::ValuesIn(chain_planner_rows()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Planners, AreAllInTheMatrix) {
  ASSERT_EQ(planners().size(), planner_matrix().size());
  for (const PlannerRow& row : planner_matrix()) {
    const PlannerInfo& planner = find_planner(row.name);
    EXPECT_EQ(planner.plan_chain != nullptr, row.chains);
    EXPECT_EQ(planner.plan_graph != nullptr, row.graphs);
    EXPECT_EQ(planner.chain_frontier != nullptr, row.curve);
    EXPECT_EQ(planner.graph_frontier != nullptr, row.graph_curve);
    EXPECT_EQ(planner.plan_join != nullptr, row.joins);
    EXPECT_EQ(planner.plan_pipeline != nullptr, row.pipelines);
  }
}

TEST(Planners, ThatCannotAnswerNameThoseThatCan) {
  std::mt19937_64 random(10);
  const Chain chain = random_chain(random);
  const Graph graph = lower(chain);
  const auto message = [](auto&& ask) -> std::string {
    try {
      ask();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  for (const PlannerRow& row : planner_matrix()) {
    const PlanOptions ask = with(row.name, Bytes(1));
    const std::tuple<bool, std::string, const char*> questions[] = {
        {row.chains, row.chains ? "" : message([&] { plan(chain, ask); }), "chain"},
        {row.graphs, row.graphs ? "" : message([&] { plan(graph, ask); }), "graph"},
        {row.curve, row.curve ? "" : message([&] { frontier(chain, ask); }), "chain"},
        {row.graph_curve, row.graph_curve ? "" : message([&] { frontier(graph, ask); }), "graph"}};
    for (const auto& [can, text, other] : questions) {
      EXPECT_EQ(text.empty(), can) << row.name;
      if (can) continue;
      EXPECT_TRUE(text.starts_with(std::string("planner '") + row.name + "' does not")) << text;
      const std::string others = ", " + text.substr(text.find("these do: ") + 10) + ",";
      const auto has = [&](const std::string& name) {
        return others.find(", " + name + ",") != std::string::npos;
      };
      EXPECT_TRUE(has(other)) << text;
      EXPECT_FALSE(has(row.name)) << text;
    }
  }
}

TEST(Planners, WrongQuestionsAreInputErrors) {
  std::mt19937_64 random(9);
  const Chain chain = random_chain(random);
  EXPECT_THROW(plan(chain, with("no_such_planner", Bytes(1))), InputError);
  EXPECT_THROW(frontier(chain, with("no_such_planner", Bytes(1))), InputError);
  EXPECT_THROW(plan(chain, with("chain", Bytes(-1))), InputError);
  EXPECT_THROW(plan(lower(chain), with("chain", Bytes(1))), InputError);
  EXPECT_THROW(plan(Chain{}, with("chain", Bytes(1))), InputError);
  PlanOptions ask;
  ask.time_limit = Nanos(-1);
  EXPECT_THROW(plan(chain, ask), InputError);
}

TEST(Planners, KeepAllIsTheBaseline) {
  for_chains(10, 100, any_chain(6), [](const Chain& chain, std::mt19937_64&) {
    const Graph graph = lower(chain);
    const Baseline plain = baseline(graph);
    for (const PlanResult& result :
         {plan(chain, with("keep_all", plain.peak)), plan(graph, with("keep_all", plain.peak))}) {
      ASSERT_TRUE(result.plan.has_value());
      EXPECT_EQ(result.plan->peak, plain.peak);
      EXPECT_EQ(result.plan->time, plain.time);
    }
    if (plain.peak == Bytes(0)) return;
    const PlanResult less = plan(graph, with("keep_all", plain.peak - Bytes(1)));
    EXPECT_EQ(less.termination, Termination::kInfeasible);
    EXPECT_EQ(less.smallest_budget, plain.peak);
  });
}

}  // namespace
}  // namespace reprise::testing
