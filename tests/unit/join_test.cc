// Tests joins: their file, their graph, their mistakes.
#include "reprise/model/join.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/example_chain.h"
#include "support/random_join.h"

namespace reprise::testing {
namespace {

Join example_join() {
  const Chain chain = example_chain();
  Join join;
  join.name = "two";
  join.fixed = Bytes(3);
  join.branches = {{"left", chain.input, chain.stages}, {"right", chain.input, chain.stages}};
  join.loss.cost = {Nanos(5), Bytes(2)};
  return join;
}

std::vector<std::string> ids_of(const Graph& graph) {
  std::vector<std::string> ids;
  for (const Op& op : graph.ops) ids.push_back(op.id);
  return ids;
}

TEST(Join, IsLoweredBranchByBranchWithOneLoss) {
  const Join join = example_join();
  const Graph graph = lower(join), own = lower(branch_chain(join.branches[0]));
  const size_t stages = join.branches[0].stages.size();
  EXPECT_EQ(graph.fixed, Bytes(3));
  EXPECT_EQ(graph.values.size(), 2 * own.values.size());
  EXPECT_EQ(graph.ops.size(), 2 * (own.ops.size() - 1) + 1);
  EXPECT_EQ(graph.results.size(), 2 * own.results.size());
  const JoinIndex index(join);
  for (size_t b = 0; b < 2; ++b) {
    for (size_t i = 0; i < stages; ++i) {
      const std::string name = join.branches[b].name;
      EXPECT_EQ(graph.ops[index.forward(b, i)].id, name + "/F" + std::to_string(i));
      EXPECT_EQ(graph.ops[index.backward(b, i)].id, name + "/B" + std::to_string(i));
    }
  }
  const Op& loss = graph.ops[index.loss()];
  EXPECT_EQ(loss.phase, Phase::kLoss);
  EXPECT_EQ(loss.variants[0].reads.size(), 2u);
  EXPECT_EQ(loss.variants[0].writes.size(), 2u);
  EXPECT_EQ(loss.variants[0].time, Nanos(5));
}

TEST(Join, TheInterleavingOrdersTheBackwards) {
  const Join join = example_join();
  const size_t stages = join.branches[0].stages.size();
  Interleaving turns;
  for (size_t i = 0; i < stages; ++i) turns.insert(turns.end(), {0, 1});
  const Graph graph = lower(join, turns);
  EXPECT_EQ(ids_of(graph)[2 * stages + 1], "left/B" + std::to_string(stages - 1));
  EXPECT_EQ(ids_of(graph)[2 * stages + 2], "right/B" + std::to_string(stages - 1));
  EXPECT_EQ(interleaving_of(join, with_frees(graph, plain_runs(graph))), turns);
  // The actions that a list leaves out follow in plain training's order.
  EXPECT_EQ(interleaving_of(join, {}), plain_interleaving(join));
  EXPECT_THROW(lower(join, {0, 1}), InputError);
  turns.back() = 7;
  EXPECT_THROW(lower(join, turns), InputError);
}

TEST(Join, AFileIsReadAsItWasWritten) {
  std::mt19937_64 random(11);
  for (int number = 0; number < 50; ++number) {
    RandomJoinOptions options;
    options.max_branches = 4;
    options.max_shared = 2;
    const Join join = random_join(random, options);
    const std::string text = to_json(join);
    EXPECT_EQ(parse_join(text), join) << text;
    const Problem problem = parse_problem(text);
    EXPECT_EQ(problem.id, problem_id(join));
    EXPECT_EQ(problem.id.format, "reprise.join");
    EXPECT_EQ(problem.graph(), lower(join));
    EXPECT_EQ(problem.chain(), nullptr);
  }
}

// A plan is judged on the graph of its own interleaving, and one that breaks the order of a branch
// is refused.
TEST(Join, APlanIsJudgedInItsOwnInterleaving) {
  const Join join = example_join();
  const Problem problem = parse_problem(to_json(join));
  const PlanResult result = plan(join);
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_TRUE(verify(problem.graph(*result.plan), *result.plan, result.budget, problem.id).empty());
  Plan broken = *result.plan;
  std::vector<Action*> backwards;
  for (Action& action : broken.actions) {
    if (action.id.starts_with("left/B")) backwards.push_back(&action);
  }
  ASSERT_GE(backwards.size(), 2u);
  std::swap(*backwards[0], *backwards[1]);
  EXPECT_FALSE(verify(problem.graph(broken), broken, result.budget, problem.id).empty());
}

TEST(Join, SharedWeightsFixTheOrderOfTheirUses) {
  Join join = example_join();
  const size_t stages = join.branches[0].stages.size();
  Interleaving turns, back;
  for (size_t i = 0; i < stages; ++i) {
    turns.insert(turns.end(), {1, 0});
    back.insert(back.end(), {0, 1});
  }
  EXPECT_TRUE(keeps_shared_order(join, back));
  const Graph unordered = lower(join, back);
  join.shared = {{{0, 1}, {1, 1}}};
  EXPECT_TRUE(keeps_shared_order(join, plain_interleaving(join)));
  EXPECT_TRUE(keeps_shared_order(join, turns));
  EXPECT_FALSE(keeps_shared_order(join, back));
  EXPECT_THROW(lower(join, back), InputError);
  // A plan in another order is judged in plain training's, and refused.
  const std::vector<Action> actions = with_frees(unordered, plain_runs(unordered));
  EXPECT_EQ(interleaving_of(join, actions), plain_interleaving(join));
  const Problem problem = parse_problem(to_json(join));
  Plan plan;
  plan.problem = problem.id;
  plan.actions = actions;
  EXPECT_FALSE(verify(problem.graph(plan), plan, Budget().resolve(Bytes()), problem.id).empty());
  EXPECT_NE(problem_id(join), problem_id(example_join()));
}

TEST(Join, PlannersOfGraphsPlanItToo) {
  const Join join = example_join();
  for (const char* planner : {"graph", "keep_all"}) {
    PlanOptions options;
    options.planner = planner;
    const PlanResult result = plan(join, options);
    ASSERT_TRUE(result.plan.has_value()) << planner;
    EXPECT_EQ(result.plan->problem, problem_id(join));
  }
  PlanOptions options;
  options.planner = "chain";
  EXPECT_THROW(plan(join, options), InputError);
  EXPECT_THROW(frontier(join, options), InputError);
  EXPECT_FALSE(frontier(join, {.time_limit = Nanos(200'000'000)}).points.empty());
}

// Sums of bytes that are rounded up must stay within 64 bits, which a sanitizer sees.
TEST(Join, WithoutABudgetThePlanIsThatOfPlentyOfMemory) {
  Join join = example_join();
  for (Branch& branch : join.branches) {
    const std::vector<Stage> once = branch.stages;
    while (branch.stages.size() < 12) {
      branch.stages.insert(branch.stages.end(), once.begin(), once.end());
    }
  }
  const PlanResult any = plan(join);
  PlanOptions options;
  options.budget = Bytes(int64_t{1} << 40);
  const PlanResult plenty = plan(join, options);
  ASSERT_TRUE(any.plan && plenty.plan);
  EXPECT_EQ(any.termination, Termination::kOptimal);
  EXPECT_EQ(any.plan->time, plenty.plan->time);
  EXPECT_EQ(any.lower_bound, plenty.lower_bound);
}

TEST(Join, TooManyBranchesAndNoTimeAreNoCrash) {
  Join join = example_join();
  PlanOptions options;
  options.time_limit = Nanos(0);
  options.budget = Budget("60%");
  const PlanResult none = plan(join, options);
  if (none.plan) {
    EXPECT_LE(none.plan->peak, none.budget);
  }
  for (int more = 0; more < 5; ++more) {
    join.branches.push_back(join.branches[0]);
    join.branches.back().name = "more" + std::to_string(more);
  }
  try {
    plan(join);
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("--planner graph"), std::string::npos);
  }
}

TEST(Join, MistakesAreRefusedAtTheirPlace) {
  const std::vector<std::pair<std::string, std::function<void(Join&)>>> cases = {
      {"/branches", [](Join& j) { j.branches.pop_back(); }},
      {"/branches/1/name", [](Join& j) { j.branches[1].name = "left"; }},
      {"/branches/0/name", [](Join& j) { j.branches[0].name = ""; }},
      {"/branches/0/name", [](Join& j) { j.branches[0].name = "a/b"; }},
      {"/branches/1/stages", [](Join& j) { j.branches[1].stages.clear(); }},
      {"/branches/1/stages/0/options", [](Join& j) { j.branches[1].stages[0].options.clear(); }},
      {"/branches/1/stages/0/output_bytes",
       [](Join& j) { j.branches[1].stages[0].output = Bytes(-1); }},
      {"/branches/0/input/bytes", [](Join& j) { j.branches[0].input.bytes = Bytes(-1); }},
      {"/branches/1/input/bytes",
       [](Join& j) {
         for (Branch& branch : j.branches) branch.input.bytes = Bytes(INT64_MAX / 4 * 3);
       }},
      {"/shared_weights/1/1",
       [](Join& j) {
         j.shared = {{{0, 0}, {1, 0}}, {{0, 0}, {2, 0}}};
       }},
      {"/shared_weights/0/0",
       [](Join& j) {
         j.shared = {{{0, 99}, {1, 0}}};
       }},
      {"/shared_weights/0/2",
       [](Join& j) {
         j.shared = {{{0, 0}, {1, 0}, {0, 0}}};
       }},
      {"/shared_weights/0",
       [](Join& j) {
         j.shared = {{{0, 0}, {0, 1}}};
       }},
      {"/fixed_bytes", [](Join& j) { j.fixed = Bytes(-1); }},
      {"/loss/ns", [](Join& j) { j.loss.cost.time = Nanos(-1); }},
      {"/loss/consumes", [](Join& j) {
         j.loss.consumes = true;
         j.branches[1].stages.back().options[0].reads_output = true;
       }}};
  for (const auto& [pointer, damage] : cases) {
    Join join = example_join();
    damage(join);
    try {
      validate(join);
      ADD_FAILURE() << "accepted: " << pointer;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, pointer) << error.what();
    }
    EXPECT_THROW(plan(join), InputError);
  }
}

TEST(Join, AMalformedFileIsRefusedWithItsPlace) {
  const std::string good = to_json(example_join());
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse_problem(text, "file.json");
    } catch (const InputError& error) {
      return error.where().pointer + " " + error.what();
    }
    return std::string("accepted");
  };
  EXPECT_TRUE(refusal("\"branches\"", "\"branch\"").find("\"branches\" is missing") !=
              std::string::npos);
  EXPECT_TRUE(refusal("\"left\"", "7").starts_with("/branches/0/name"));
  EXPECT_TRUE(refusal("\"left\"", "\"right\"").starts_with("/branches/1/name"));
  EXPECT_TRUE(refusal("\"version\": 1", "\"version\": 2").starts_with("/version"));
  EXPECT_TRUE(refusal("reprise.join", "reprise.joins").find("reprise.join") != std::string::npos);
}

}  // namespace
}  // namespace reprise::testing
