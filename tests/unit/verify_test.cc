#include "reprise/check/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "check/accounting.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "support/build_graph.h"
#include "support/example_chain.h"
#include "support/naive_check.h"

namespace reprise::testing {
namespace {

constexpr Bytes kPlenty(1'000'000);

// A fault is what is wrong, at which action, and whose id it names, without the message.
using Fault = std::tuple<ViolationKind, int64_t, std::string>;

std::vector<Fault> faults(const Graph& graph, const Plan& plan, Bytes budget = kPlenty) {
  std::vector<Fault> result;
  for (const Violation& violation : verify(graph, plan, budget)) {
    EXPECT_FALSE(violation.message.empty());
    EXPECT_EQ(violation.message.find('\n'), std::string::npos);
    result.emplace_back(violation.kind, violation.action, violation.id);
  }
  return result;
}

// Returns the faults of the actions alone. The claims are taken from the walk's own numbers,
// whatever they are.
std::vector<Fault> action_faults(const Graph& graph, const std::vector<Action>& actions) {
  Plan plan;
  plan.actions = actions;
  std::vector<Fault> result = faults(graph, plan);
  std::erase_if(
      result, [](const Fault& fault) { return std::get<0>(fault) == ViolationKind::kFalseClaim; });
  return result;
}

Plan good_plan() { return claimed_plan(two_op_graph(), {run("a"), run("b"), release("y")}); }

TEST(Verify, AValidPlanHasNoViolation) {
  EXPECT_TRUE(verify(two_op_graph(), good_plan(), Bytes(167)).empty());
  const Graph graph = lower(example_chain());
  const Plan plain = claimed_plan(graph, with_frees(graph, plain_runs(graph)));
  EXPECT_TRUE(verify(graph, plain, Bytes(232)).empty());
}

TEST(Verify, EveryActionOverTheBudgetIsReportedWithItsBytes) {
  const std::vector<Violation> found = verify(two_op_graph(), good_plan(), Bytes(140));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].kind, ViolationKind::kOverBudget);
  EXPECT_EQ(found[0].action, 1);
  EXPECT_EQ(found[0].id, "b");
  EXPECT_EQ(found[0].over, Bytes(27));
  EXPECT_EQ(found[0].message,
            "action 1 (run b default): needs 167 bytes while it runs, 27 over the budget of 140");
  EXPECT_EQ(found[1].action, 2);  // y and z are both there until y is gone
  EXPECT_EQ(found[1].over, Bytes(20));
}

TEST(Verify, AStartOverTheBudgetIsReportedForThePlan) {
  const std::vector<Violation> found = verify(two_op_graph(), good_plan(), Bytes(109));
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].action, -1);
  EXPECT_EQ(found[0].over, Bytes(1));
}

TEST(Verify, UnknownIdsAreReportedAndTheWalkGoesOn) {
  EXPECT_EQ(
      action_faults(two_op_graph(), {run("a"), run("c"), run("b"), release("q"), release("y")}),
      (std::vector<Fault>{{ViolationKind::kUnknownId, 1, "c"},
                          {ViolationKind::kUnknownId, 3, "q"}}));
  EXPECT_EQ(action_faults(two_op_graph(), {run("a"), run("b", "fused"), release("y")}),
            (std::vector<Fault>{{ViolationKind::kUnknownId, 1, "b"},
                                {ViolationKind::kMissingResult, -1, "z"}}));
}

TEST(Verify, ReadsAndFreesOfWhatIsNotLiveAreReported) {
  EXPECT_EQ(
      action_faults(two_op_graph(), {run("b"), run("a"), release("y"), release("y")}),
      (std::vector<Fault>{{ViolationKind::kNotLive, 0, "y"}, {ViolationKind::kNotLive, 3, "y"}}));
}

TEST(Verify, InputsAreNotFreed) {
  EXPECT_EQ(action_faults(two_op_graph(), {release("x"), run("a"), run("b"), release("y")}),
            (std::vector<Fault>{{ViolationKind::kInputFreed, 0, "x"}}));
}

TEST(Verify, EveryOpMustRun) {
  EXPECT_EQ(action_faults(two_op_graph(), {run("a"), release("y")}),
            (std::vector<Fault>{{ViolationKind::kMissingRun, -1, "b"},
                                {ViolationKind::kMissingResult, -1, "z"}}));
}

TEST(Verify, NothingButInputsAndResultsIsLiveAtTheEnd) {
  EXPECT_EQ(action_faults(two_op_graph(), {run("a"), run("b")}),
            (std::vector<Fault>{{ViolationKind::kLeftOver, -1, "y"}}));
}

TEST(Verify, OnceLossAndBackwardOpsRunOnce) {
  for (const bool once : {true, false}) {
    for (const Phase phase : {Phase::kForward, Phase::kLoss, Phase::kBackward}) {
      Graph graph = two_op_graph();
      graph.ops[0].once = once;
      graph.ops[0].phase = phase;
      std::vector<Fault> expected;
      if (once || phase != Phase::kForward) expected = {{ViolationKind::kRepeatedRun, 1, "a"}};
      EXPECT_EQ(action_faults(graph, {run("a"), run("a"), run("b"), release("y")}), expected);
    }
  }
}

// There are three independent ops: a collective, a loss and a backward.
TEST(Verify, OnceLossAndBackwardOpsKeepTheOrderOfTheGraph) {
  Graph graph;
  add_value(graph, "x", 1, ValueKind::kInput);
  for (const char* id : {"p", "q", "r"}) graph.results.push_back(add_value(graph, id, 1));
  add_op(graph, "collective", {make_variant(1, {0}, {1})});
  add_op(graph, "loss", {make_variant(1, {0}, {2})}, Phase::kLoss);
  add_op(graph, "backward", {make_variant(1, {0}, {3})}, Phase::kBackward);
  const std::vector<Action> late = {run("loss"), run("backward"), run("collective")};
  EXPECT_TRUE(action_faults(graph, late).empty());
  graph.ops[0].once = true;
  EXPECT_EQ(action_faults(graph, late),
            (std::vector<Fault>{{ViolationKind::kOrder, 2, "collective"}}));
  EXPECT_EQ(action_faults(graph, {run("collective"), run("backward"), run("loss")}),
            (std::vector<Fault>{{ViolationKind::kOrder, 2, "loss"}}));
}

// In another order they would draw other numbers than plain training. Re-runs may come in any
// order.
TEST(Verify, FirstRunsOfRandomOpsKeepTheOrderOfTheGraph) {
  Graph graph;
  add_value(graph, "x", 1, ValueKind::kInput);
  for (const char* id : {"p", "q"}) graph.results.push_back(add_value(graph, id, 1));
  add_op(graph, "a", {make_variant(1, {0}, {1})});
  add_op(graph, "b", {make_variant(1, {0}, {2})});
  EXPECT_TRUE(action_faults(graph, {run("b"), run("a")}).empty());
  for (Op& op : graph.ops) op.random = true;
  EXPECT_EQ(action_faults(graph, {run("b"), run("a")}),
            (std::vector<Fault>{{ViolationKind::kOrder, 1, "a"}}));
  EXPECT_TRUE(action_faults(graph, {run("a"), run("b"), run("a")}).empty());
}

TEST(Verify, RolesAreRespected) {
  Graph graph = two_op_graph();
  Variant first = graph.ops[0].variants[0];
  first.name = "first";
  first.role = Role::kFirst;
  Variant replay = first;
  replay.name = "replay";
  replay.role = Role::kReplay;
  graph.ops[0].variants = {first, replay};
  const auto plan = [](const char* one, const char* two) {
    return std::vector<Action>{run("a", one), release("y"), run("a", two), run("b"), release("y")};
  };
  EXPECT_TRUE(action_faults(graph, plan("first", "replay")).empty());
  EXPECT_EQ(action_faults(graph, plan("replay", "first")),
            (std::vector<Fault>{{ViolationKind::kRole, 0, "a"}, {ViolationKind::kRole, 2, "a"}}));
}

// The graph is y -> b -> z or y -> b1 -> t -> b2 -> z.
Graph choice_graph() {
  Graph graph = two_op_graph();
  const ValueIndex t = add_value(graph, "t", 4);
  add_op(graph, "b1", {make_variant(1, {1}, {t})});
  add_op(graph, "b2", {make_variant(1, {t}, {2})});
  graph.choices = {{"bs", {{"", {1}}, {"", {2, 3}}}}};
  return graph;
}

TEST(Verify, EitherRealizationOfAChoiceMayRun) {
  EXPECT_TRUE(action_faults(choice_graph(), {run("a"), run("b"), release("y")}).empty());
  EXPECT_TRUE(
      action_faults(choice_graph(), {run("a"), run("b1"), run("b2"), release("y"), release("t")})
          .empty());
}

TEST(Verify, MixedIncompleteAndMissingRealizationsAreReported) {
  EXPECT_EQ(
      action_faults(choice_graph(), {run("a"), run("b"), run("b1"), release("y"), release("t")}),
      (std::vector<Fault>{{ViolationKind::kChoice, 2, "b1"}}));
  EXPECT_EQ(action_faults(choice_graph(), {run("a"), run("b1"), release("y"), release("t")}),
            (std::vector<Fault>{{ViolationKind::kMissingRun, -1, "b2"},
                                {ViolationKind::kMissingResult, -1, "z"}}));
  EXPECT_EQ(action_faults(choice_graph(), {run("a"), release("y")}),
            (std::vector<Fault>{{ViolationKind::kChoice, -1, "bs"},
                                {ViolationKind::kMissingResult, -1, "z"}}));
}

TEST(Verify, AllViolationsAreListedInTheOrderOfTheActions) {
  const std::vector<Fault> expected = {
      {ViolationKind::kNotLive, 0, "y"},
      {ViolationKind::kUnknownId, 1, "nobody"},
      {ViolationKind::kInputFreed, 2, "x"},
      {ViolationKind::kMissingRun, -1, "a"},
  };
  EXPECT_EQ(action_faults(two_op_graph(), {run("b"), run("nobody"), release("x")}), expected);
}

// Each false claim is found, and nothing else is.
TEST(Verify, FalseClaimsAreNamed) {
  const auto claims = [](auto change) {
    Plan plan = good_plan();
    change(plan);
    std::vector<std::string> result;
    for (const auto& [kind, action, id] : faults(two_op_graph(), plan)) {
      EXPECT_EQ(kind, ViolationKind::kFalseClaim);
      EXPECT_EQ(action, -1);
      result.push_back(id);
    }
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(claims([](Plan& p) { p.peak = Bytes(166); }), Names{"peak_bytes"});
  EXPECT_EQ(claims([](Plan& p) { p.peak = Bytes(168); }), Names{"peak_bytes"});
  EXPECT_EQ(claims([](Plan& p) { p.time = Nanos(2); }), Names{"time_ns"});
  EXPECT_EQ(claims([](Plan& p) { p.budget = Bytes(166); }), Names{"budget_bytes"});
  EXPECT_EQ(claims([](Plan& p) { p.budget = Bytes(168); }), Names{});  // slack is no lie
  EXPECT_EQ(claims([](Plan& p) { p.lower_bound = Nanos(4); }), Names{"lower_bound_ns"});
  EXPECT_EQ(claims([](Plan& p) { p.baseline.peak = Bytes(1); }), Names{"baseline"});
  EXPECT_EQ(claims([](Plan& p) { p.baseline.time = Nanos(1); }), Names{"baseline"});
  EXPECT_EQ(claims([](Plan& p) { p.termination = Termination::kInfeasible; }),
            Names{"termination"});
  EXPECT_EQ(claims([](Plan& p) { p.termination = Termination::kTimeLimit; }), Names{"termination"});
  EXPECT_EQ(claims([](Plan& p) { p.termination = Termination::kOptimal; }), Names{"termination"});
  EXPECT_EQ(claims([](Plan& p) {
              p.termination = Termination::kOptimal;
              p.lower_bound = p.time;
            }),
            Names{});
}

TEST(Verify, APlanOfAnotherProblemIsReported) {
  const Graph graph = two_op_graph();
  Plan plan = good_plan();
  const auto kinds = [&](const ProblemId& problem) {
    std::vector<std::string> result;
    for (const Violation& v : verify(graph, plan, kPlenty, problem)) {
      EXPECT_EQ(v.kind, ViolationKind::kOtherProblem);
      result.push_back(v.id);
    }
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(kinds({"reprise.graph", "two", ""}), Names{});
  EXPECT_EQ(kinds({"reprise.graph", "two", "abc"}), Names{});  // the plan has no hash to compare
  plan.problem.sha256 = "abd";
  EXPECT_EQ(kinds({"reprise.graph", "two", ""}), Names{});
  EXPECT_EQ(kinds({"reprise.graph", "two", "abc"}), Names{"sha256"});
  EXPECT_EQ(kinds({"reprise.chain", "three", "abd"}), (Names{"format", "name"}));
}

// The numbers fit one by one, and overflow in the sum of a long plan. Such a sum is a violation,
// not an exception.
TEST(Verify, HostileNumbersAreJudgedWithoutOverflow) {
  Graph graph = two_op_graph();
  graph.values[1].bytes = Bytes(INT64_MAX - 200);
  graph.ops[0].variants[0].time = Nanos(INT64_MAX - 2);
  Plan plan;
  plan.actions = {run("a"), run("a"), run("a"), run("b"), release("y")};
  plan.peak = plan.budget = Bytes(INT64_MIN);
  plan.time = plan.lower_bound = Nanos(INT64_MIN);
  const std::vector<Fault> found = faults(graph, plan, Bytes(0));
  EXPECT_EQ(
      std::count_if(found.begin(), found.end(),
                    [](const Fault& f) { return std::get<0>(f) == ViolationKind::kOverBudget; }),
      6);
  EXPECT_GE(
      std::count_if(found.begin(), found.end(),
                    [](const Fault& f) { return std::get<0>(f) == ViolationKind::kFalseClaim; }),
      4);
}

TEST(Verify, AMalformedGraphIsAnInputErrorNotAViolation) {
  Graph graph = two_op_graph();
  graph.results = {99};
  EXPECT_THROW(verify(graph, good_plan(), kPlenty), InputError);
}

// Tests the second account on its own, with the intervals of a plan with duplicates, reuse,
// consumption and a hole.
TEST(Verify, TheSecondAccountAgreesWithHandCountedLevels) {
  Graph graph = two_op_graph();
  graph.ops[1].variants[0].consumes = {1};
  const std::vector<std::optional<BoundAction>> actions = {
      BoundAction{ActionKind::kRun, 0, 0},  std::nullopt,
      BoundAction{ActionKind::kRun, 0, 0},  BoundAction{ActionKind::kRun, 1, 0},
      BoundAction{ActionKind::kFree, 1, 0}, BoundAction{ActionKind::kFree, 2, 0}};
  const Levels levels = interval_levels(graph, actions).front();
  const Levels counted = {110, 135, 130, 130, 130, 155, 130, 147, 140, 140, 140, 140, 110};
  EXPECT_TRUE(levels == counted);
}

// A small file may break the rules in every read of every run.
TEST(Verify, TenThousandViolationsEndIt) {
  Graph graph;
  std::vector<ValueIndex> made;
  for (int k = 0; k < 300; ++k) made.push_back(add_value(graph, "v" + std::to_string(k), 1));
  const ValueIndex last = add_value(graph, "last", 1);
  add_op(graph, "make", {make_variant(1, {}, made)});
  add_op(graph, "read", {make_variant(1, made, {last})});
  Plan plan;
  plan.actions.assign(1'000, run("read"));  // 300,000 reads of what is not live
  const size_t violations = verify(graph, plan, Bytes(1'000)).size();
  EXPECT_GE(violations, 10'000u);
  EXPECT_LT(violations, 10'400u);
}

TEST(Verify, OneOfManyVariantsIsFoundByItsName) {
  Graph graph;
  const ValueIndex y = add_value(graph, "y", 1);
  std::vector<Variant> variants;
  for (int k = 0; k < 40; ++k) {
    variants.push_back(make_variant(k, {}, {y}));
    variants.back().name = "v" + std::to_string(k);
  }
  add_op(graph, "f", variants);
  graph.results = {y};
  EXPECT_EQ(simulate(graph, {run("f", "v39")}).time, Nanos(39));
  EXPECT_THROW(simulate(graph, {run("f", "v40")}), InputError);
}

TEST(Verify, EveryKindHasAName) {
  for (int kind = 0; kind <= static_cast<int>(ViolationKind::kOtherProblem); ++kind) {
    EXPECT_STRNE(to_string(static_cast<ViolationKind>(kind)), "?") << kind;
  }
}

}  // namespace
}  // namespace reprise::testing
