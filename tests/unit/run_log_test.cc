#include <gtest/gtest.h>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/runlog.h"
#include "support/io_text.h"

namespace reprise::testing {
namespace {

Plan small_plan() { return parse_plan(kPlanText); }

TEST(RunLog, IsReadAsWritten) {
  const RunLog log = parse_run_log(kRunLogText);
  EXPECT_EQ(log.problem, (ProblemId{"reprise.graph", "small", ""}));
  EXPECT_EQ(log.device, "cpu");
  EXPECT_EQ(log.steps, 5);
  EXPECT_EQ(log.planned, (StepCost{Bytes(16), Nanos(3)}));
  EXPECT_EQ(log.measured, (StepCost{Bytes(18), Nanos(7)}));
  ASSERT_EQ(log.actions.size(), 2u);
  EXPECT_EQ(log.actions[1],
            (RunLogEntry{1, "b", "default", Bytes(16), Bytes(18), Nanos(2), Nanos(4)}));
  EXPECT_EQ(parse_run_log(to_json(log)), log);
  EXPECT_EQ(to_json(parse_run_log(to_json(log))), to_json(log));
}

TEST(RunLog, RefusesToWriteWhatCouldNotBeRead) {
  RunLog log = parse_run_log(kRunLogText);
  log.actions[0].measured_bytes = Bytes(-1);
  EXPECT_THROW(to_json(log), InputError);
  log = parse_run_log(kRunLogText);
  log.actions[0].action = -1;
  EXPECT_THROW(to_json(log), InputError);
  log = parse_run_log(kRunLogText);
  log.steps = 0;
  EXPECT_THROW(to_json(log), InputError);
}

TEST(RunLog, OfThePlanIsValid) {
  const RunLog log = parse_run_log(kRunLogText);
  EXPECT_NO_THROW(validate(log, small_plan()));
  RunLog partial = log;
  partial.actions.erase(partial.actions.begin());
  EXPECT_NO_THROW(validate(partial, small_plan()));
}

TEST(RunLog, OfAnotherPlanIsRefusedWithThePlace) {
  struct Case {
    void (*damage)(RunLog&, Plan&);
    const char* pointer;
  };
  const Case cases[] = {
      {[](RunLog& log, Plan&) { log.problem.name = "other"; }, "/problem"},
      {[](RunLog& log, Plan& plan) {
         log.problem.sha256 = std::string(64, 'a');
         plan.problem.sha256 = std::string(64, 'b');
       },
       "/problem"},
      {[](RunLog& log, Plan&) { log.actions[1].action = 2; }, "/actions/1/action"},
      {[](RunLog& log, Plan&) { log.actions[1].action = 0; }, "/actions/1/action"},
      {[](RunLog& log, Plan&) { log.actions[0].op = "b"; }, "/actions/0/op"},
      {[](RunLog& log, Plan&) { log.actions[1].variant = "other"; }, "/actions/1/variant"},
      {[](RunLog&, Plan& plan) {
         plan.actions[1] = {ActionKind::kFree, "b", ""};
       },
       "/actions/1/action"},
  };
  for (const Case& item : cases) {
    RunLog log = parse_run_log(kRunLogText);
    Plan plan = small_plan();
    item.damage(log, plan);
    try {
      validate(log, plan);
      ADD_FAILURE() << "accepted: " << item.pointer;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, item.pointer) << error.what();
    }
  }
}

TEST(SameProblem, ComparesHashesWhereBothHaveOne) {
  const ProblemId plain{"reprise.chain", "n", ""};
  const ProblemId hashed{"reprise.chain", "n", std::string(64, 'a')};
  const ProblemId other_hash{"reprise.chain", "n", std::string(64, 'b')};
  EXPECT_TRUE(same_problem(plain, hashed));
  EXPECT_TRUE(same_problem(hashed, hashed));
  EXPECT_FALSE(same_problem(hashed, other_hash));
  EXPECT_FALSE(same_problem(plain, {"reprise.graph", "n", ""}));
  EXPECT_FALSE(same_problem(plain, {"reprise.chain", "m", ""}));
}

}  // namespace
}  // namespace reprise::testing
