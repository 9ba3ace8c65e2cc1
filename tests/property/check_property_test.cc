// Simulator, verifier, bookkeeping backend and a naive oracle (support/naive_check.h) agree on
// random problems. On valid plans they agree about every number, on damaged plans about whether
// they are valid.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <random>
#include <string>

#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/run/bookkeeping.h"
#include "reprise/run/interpreter.h"
#include "support/naive_check.h"
#include "support/random_chain.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

// RapidCheck prints the seed of a failing case and the instance as JSON (RC_LOG below).
std::mt19937_64 random_engine() {
  return std::mt19937_64(
      *rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>())));
}

// Logs the instance when an assertion in its scope fails. Writing it out in every case would take
// ten times as long as the checks.
class LogOnFailure {
 public:
  LogOnFailure(const Graph& graph, const std::vector<Action>& actions)
      : graph_(graph), actions_(actions) {}
  LogOnFailure(const LogOnFailure&) = delete;
  LogOnFailure& operator=(const LogOnFailure&) = delete;
  ~LogOnFailure() {
    if (std::uncaught_exceptions() == before_) return;
    RC_LOG() << describe(graph_) << "\n" << describe(actions_) << "\n";
  }

 private:
  const Graph& graph_;
  const std::vector<Action>& actions_;
  const int before_ = std::uncaught_exceptions();
};

Graph any_graph(std::mt19937_64& random) {
  return random() % 2 == 0 ? random_graph(random) : lower(random_chain(random));
}

std::string all(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) text += violation.message + "\n";
  return text;
}

// All four counts of a valid plan are equal, and explain() accounts for every byte of the peak.
void check_agreement(const Graph& graph, const std::vector<Run>& runs) {
  const std::vector<Action> actions = with_frees(graph, runs);
  const LogOnFailure log(graph, actions);
  const Plan plan = claimed_plan(graph, actions);
  const Timeline timeline = simulate(graph, plan);
  RC_ASSERT(all(verify(graph, plan, plan.peak)) == "");

  const NaiveResult naive = naive_check(graph, actions);
  RC_ASSERT(naive.valid);
  RC_ASSERT(timeline.peak.count() == naive.peak);
  RC_ASSERT(timeline.time.count() == naive.time);

  BookkeepingBackend books(graph);
  execute(Program(graph, actions), books);
  RC_ASSERT(books.peak() == timeline.peak);
  RC_ASSERT(books.time() == timeline.time);
  RC_ASSERT(books.live() ==
            (timeline.steps.empty() ? timeline.initial : timeline.steps.back().after));

  Bytes held;
  for (const Holder& holder : explain(graph, plan).holders) held += holder.bytes;
  RC_ASSERT(held == timeline.peak);
}

RC_GTEST_PROP(CheckProperty, PlainPlansOfChainsAreCountedEquallyByAll, ()) {
  std::mt19937_64 random = random_engine();
  for (int k = 0; k < 10; ++k) {
    const Graph graph = lower(random_chain(random));
    check_agreement(graph, plain_runs(graph));
  }
}

RC_GTEST_PROP(CheckProperty, RecomputingPlansAreCountedEquallyByAll, ()) {
  std::mt19937_64 random = random_engine();
  for (int k = 0; k < 10; ++k) {
    const Graph graph = any_graph(random);
    check_agreement(graph, random_runs(random, graph, 8));
  }
}

RC_GTEST_PROP(CheckProperty, BudgetsBelowThePeakAreViolatedByTheExactNumber, ()) {
  std::mt19937_64 random = random_engine();
  const Graph graph = any_graph(random);
  const Plan plan = claimed_plan(graph, with_frees(graph, random_runs(random, graph, 5)));
  const Timeline timeline = simulate(graph, plan);
  const Bytes budget(static_cast<int64_t>(random() % (plan.peak.count() + 1)));
  const LogOnFailure log(graph, plan.actions);
  std::vector<Violation> expected;
  if (timeline.initial > budget) {
    expected.push_back({ViolationKind::kOverBudget, -1, "", timeline.initial - budget, ""});
  }
  for (size_t a = 0; a < plan.actions.size(); ++a) {
    if (timeline.steps[a].during <= budget) continue;
    expected.push_back({ViolationKind::kOverBudget, static_cast<int64_t>(a), plan.actions[a].id,
                        timeline.steps[a].during - budget, ""});
  }
  std::vector<Violation> found = verify(graph, plan, budget);
  for (Violation& violation : found) violation.message.clear();
  RC_ASSERT(found == expected);
}

// Frees are as early as they can be. Moving any of them one place earlier breaks the plan, or
// changes nothing if the place before is another free.
RC_GTEST_PROP(CheckProperty, WithFreesFreesAsEarlyAsPossible, ()) {
  std::mt19937_64 random = random_engine();
  const Graph graph = any_graph(random);
  const std::vector<Action> actions = with_frees(graph, random_runs(random, graph, 6));
  const LogOnFailure log(graph, actions);
  for (size_t a = 1; a < actions.size(); ++a) {
    if (actions[a].kind != ActionKind::kFree) continue;
    size_t run = a;
    while (actions[run].kind == ActionKind::kFree) --run;
    std::vector<Action> earlier = actions;
    std::rotate(earlier.begin() + static_cast<int64_t>(run),
                earlier.begin() + static_cast<int64_t>(a),
                earlier.begin() + static_cast<int64_t>(a) + 1);
    RC_ASSERT(!naive_check(graph, earlier).valid);
  }
}

Action random_action(std::mt19937_64& random, const Graph& graph) {
  if (random() % 2 == 0)
    return {ActionKind::kFree, graph.values[random() % graph.values.size()].id, ""};
  const Op& op = graph.ops[random() % graph.ops.size()];
  return {ActionKind::kRun, op.id, op.variants[random() % op.variants.size()].name};
}

// Changes one thing. Some changes leave the plan as good as it was, and the oracle says which.
void damage(std::mt19937_64& random, const Graph& graph, Plan& plan) {
  std::vector<Action>& actions = plan.actions;
  const size_t at = random() % actions.size();
  const size_t other = random() % actions.size();
  const auto place = actions.begin() + static_cast<int64_t>(at);
  const int64_t by = random() % 2 == 0 ? 1 : -1;
  switch (random() % 14) {
    case 0:
      actions.erase(place);
      break;
    case 1:
      actions.insert(place, Action(actions[other]));
      break;
    case 2:
      std::swap(actions[at], actions[other]);
      break;
    case 3:
      std::swap(actions[at], actions[at == 0 ? 0 : at - 1]);
      break;
    case 4:
      actions.insert(place, random_action(random, graph));
      break;
    case 5:
      *place = random_action(random, graph);
      break;
    case 6:
      place->id += "?";
      break;
    case 7:
      place->kind = place->kind == ActionKind::kRun ? ActionKind::kFree : ActionKind::kRun;
      break;
    case 8:
      plan.peak += Bytes(by);
      break;
    case 9:
      plan.time += Nanos(by);
      break;
    case 10:
      plan.budget += Bytes(by);
      break;
    case 11:
      plan.lower_bound = plan.time + Nanos(by);
      plan.termination = static_cast<Termination>(random() % 4);
      break;
    case 12:
      plan.baseline.peak += Bytes(by);
      break;
    case 13:
      plan.baseline.time += Nanos(by);
      break;
  }
}

RC_GTEST_PROP(CheckProperty, DamagedPlansAreRefusedExactlyWhenTheOracleRefusesThem, ()) {
  std::mt19937_64 random = random_engine();
  for (int k = 0; k < 40; ++k) {
    const Graph graph = any_graph(random);
    Plan plan = claimed_plan(graph, with_frees(graph, random_runs(random, graph, 4)));
    const Bytes budget = plan.peak + Bytes(static_cast<int64_t>(random() % 3));
    const int64_t changes = 1 + static_cast<int64_t>(random() % 2);
    for (int64_t c = 0; c < changes && !plan.actions.empty(); ++c) damage(random, graph, plan);
    const LogOnFailure log(graph, plan.actions);
    const std::vector<Violation> violations = verify(graph, plan, budget);
    RC_ASSERT(violations.empty() == naive_accepts(graph, plan, budget.count()));
  }
}

// The claims follow the damage here, so that only the actions decide. The numbers of plans that are
// still valid agree. Plans that simulate() refuses are refused by verify() at the same action.
RC_GTEST_PROP(CheckProperty, DamagedActionsAreSimulatedOrRefusedByAll, ()) {
  std::mt19937_64 random = random_engine();
  for (int k = 0; k < 40; ++k) {
    const Graph graph = any_graph(random);
    Plan plan = claimed_plan(graph, with_frees(graph, random_runs(random, graph, 4)));
    damage(random, graph, plan);
    const LogOnFailure log(graph, plan.actions);
    const NaiveResult naive = naive_check(graph, plan.actions);
    try {
      plan = claimed_plan(graph, plan.actions);
    } catch (const InputError& error) {
      RC_ASSERT(!naive.valid);
      const std::vector<Violation> violations = verify(graph, plan, Bytes(1'000'000));
      RC_ASSERT(std::any_of(violations.begin(), violations.end(), [&](const Violation& violation) {
        return "/actions/" + std::to_string(violation.action) == error.where().pointer;
      }));
      continue;
    }
    RC_ASSERT(verify(graph, plan, plan.peak).empty() == naive.valid);
    if (naive.valid) RC_ASSERT(plan.peak.count() == naive.peak && plan.time.count() == naive.time);
  }
}

// The actions may be any bytes at all. The answer is a judgement, never a crash or an exception.
RC_GTEST_PROP(CheckProperty, RandomActionsAreAlwaysJudged, ()) {
  std::mt19937_64 random = random_engine();
  const Graph graph = any_graph(random);
  Plan plan;
  const size_t count = random() % 40;
  for (size_t a = 0; a < count; ++a) plan.actions.push_back(random_action(random, graph));
  const LogOnFailure log(graph, plan.actions);
  RC_ASSERT(verify(graph, plan, Bytes(1'000'000)).empty() == naive_accepts(graph, plan, 1'000'000));
}

// The properties above are only worth something if the generators reach these features.
TEST(CheckProperty, TheGeneratorsReachEveryFeature) {
  std::mt19937_64 random(1);
  int reruns = 0, second_realizations = 0, reuses = 0, consumes = 0, replays = 0, still_valid = 0;
  for (int k = 0; k < 500; ++k) {
    const Graph graph = random_graph(random);
    const std::vector<reprise::Run> runs = random_runs(random, graph, 8);
    std::vector<int> count(graph.ops.size(), 0);
    for (const reprise::Run& each : runs) {
      const Variant& variant = graph.ops[each.op].variants[each.variant];
      reruns += ++count[each.op] > 1;
      reuses += !variant.reuses.empty();
      consumes += !variant.consumes.empty();
      replays += variant.role == Role::kReplay;
    }
    for (const Choice& choice : graph.choices) {
      second_realizations += count[choice.realizations[1].ops[0]] > 0;
    }
    Plan plan = claimed_plan(graph, with_frees(graph, runs));
    const std::vector<Action> before = plan.actions;
    damage(random, graph, plan);
    still_valid += plan.actions != before && naive_check(graph, plan.actions).valid;
  }
  EXPECT_GT(reruns, 200);
  EXPECT_GT(second_realizations, 50);
  EXPECT_GT(reuses, 20);
  EXPECT_GT(consumes, 100);
  EXPECT_GT(replays, 20);
  EXPECT_GT(still_valid, 10);
}

RC_GTEST_PROP(CheckProperty, RandomChainsAndGraphsAreWellFormed, ()) {
  std::mt19937_64 random = random_engine();
  RandomChainOptions options;
  options.founding_model = random() % 2 == 0;
  options.inexact_options = random() % 2 == 0;
  options.workspaces = random() % 2 == 0;
  const Chain chain = random_chain(random, options);
  RC_LOG() << describe(chain) << "\n";
  validate(chain);
  validate(lower(chain));
  const Chain bitwise = restrict_exactness(chain, Exactness::kBitwise);
  RC_ASSERT(baseline(lower(bitwise)) == baseline(lower(chain)));
  validate(random_graph(random));
}

}  // namespace
}  // namespace reprise::testing
