// The feasibility tests of the published recurrence, as implemented by its authors, go wrong on two
// chains: one plan is over budget, and one feasible budget is refused.
#include <gtest/gtest.h>

#include "oracle/persistent.h"
#include "reprise/model/chain.h"
#include "reprise/plan/plan.h"

namespace reprise::testing {
namespace {

// This is the founding model with f = 1 and b = 2. x[i] goes into stage i, kept[i] stays of it
// (output included), and workspace[i] is the workspace of its forward.
Chain founding_chain(const std::vector<int64_t>& x, const std::vector<int64_t>& kept,
                     const std::vector<int64_t>& workspace) {
  Chain chain;
  chain.name = "counterexample";
  chain.input = {Bytes(x[0]), Bytes(x[0])};
  for (size_t i = 0; i < kept.size(); ++i) {
    Stage stage;
    stage.output = Bytes(x[i + 1]);
    stage.forward = {Nanos(1), Bytes(workspace[i])};
    stage.options.push_back({.saved = Bytes(kept[i] - x[i + 1]),
                             .forward = stage.forward,
                             .backward = {Nanos(2), Bytes(0)}});
    chain.stages.push_back(stage);
  }
  return chain;
}

TEST(PublishedCounterexamples, KeepingAFirstStageMustLeaveRoomForTheGradientAfterTheLast) {
  const Chain chain = founding_chain({2, 2, 3, 4}, {5, 7, 8}, {12, 0, 0});
  const PlanResult result = plan(chain, {.budget = Bytes(21)});
  ASSERT_EQ(result.termination, Termination::kOptimal);
  EXPECT_EQ(result.plan->time, Nanos(12));  // 11 in the published form, with a real peak of 22
  EXPECT_EQ(result.plan->peak, Bytes(21));
  EXPECT_EQ(best_within(*persistent_frontier(chain, 1000), 21), 12);
  EXPECT_EQ(plan(chain, {.budget = Bytes(22)}).plan->time, Nanos(11));
}

TEST(PublishedCounterexamples, ASweepNeedsItsOwnStagesOnly) {
  const Chain chain = founding_chain({4, 2, 4}, {6, 5}, {0, 7});
  const PlanResult result = plan(chain, {.budget = Bytes(18)});
  ASSERT_EQ(result.termination, Termination::kOptimal);  // refused in the published form
  EXPECT_EQ(result.plan->time, Nanos(7));
  EXPECT_EQ(result.plan->peak, Bytes(18));
}

}  // namespace
}  // namespace reprise::testing
