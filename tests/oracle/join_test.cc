// Compares the planner of joins with exhaustive search. Its time equals that of the best schedule
// of its class at every budget, and is never below the best plan of any kind over all
// interleavings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "oracle/persistent.h"
#include "oracle/exhaustive.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_join.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

// A join with more schedules than this is passed over.
constexpr size_t kScheduleLimit = 3000;

struct Family {
  const char* name;
  int joins;
  RandomJoinOptions options;
  uint64_t seed;
};

RandomJoinOptions joins_of(int branches, int stages, int options_a_stage) {
  RandomJoinOptions options;
  options.min_branches = options.max_branches = branches;
  options.chain.max_stages = stages;
  options.chain.max_options = options_a_stage;
  return options;
}

RandomJoinOptions founding(int branches, int stages) {
  RandomJoinOptions options = joins_of(branches, stages, 1);
  options.chain.founding_model = true;
  return options;
}

RandomJoinOptions with_shared_weights(int branches, int stages) {
  RandomJoinOptions options = joins_of(branches, stages, 1);
  options.max_shared = 2;
  return options;
}

RandomJoinOptions large_workspaces(int branches, int stages) {
  RandomJoinOptions options = joins_of(branches, stages, 1);
  options.chain.dominant_workspaces = true;
  return options;
}

std::vector<Family> families() {
  return {{"two_of_three_stages", 250, joins_of(2, 3, 1), 1},
          {"two_with_options", 250, joins_of(2, 2, 2), 2},
          {"two_founding", 250, founding(2, 3), 3},
          {"two_large_workspaces", 200, large_workspaces(2, 3), 4},
          {"three", 150, joins_of(3, 2, 1), 5},
          {"three_with_options", 100, joins_of(3, 1, 2), 6},
          {"two_sharing_weights", 250, with_shared_weights(2, 3), 8},
          {"three_sharing_weights", 100, with_shared_weights(3, 2), 9}};
}

class JoinOracle : public ::testing::TestWithParam<Family> {};

void expect_equal_at_every_step(const Join& join, const std::vector<PeakAndTime>& best) {
  for (size_t s = 0; s < best.size(); ++s) {
    SCOPED_TRACE("budget " + std::to_string(best[s].peak));
    const PlanResult at = plan(join, with("join", Bytes(best[s].peak)));
    ASSERT_EQ(at.termination, Termination::kOptimal);
    ASSERT_EQ(at.plan->time.count(), best[s].time);
    const Graph graph = lower(join, interleaving_of(join, at.plan->actions));
    ASSERT_TRUE(verify(graph, *at.plan, Bytes(best[s].peak), problem_id(join)).empty());
    if (best[s].peak == 0) continue;
    const PlanResult below = plan(join, with("join", Bytes(best[s].peak - 1)));
    if (s == 0) {
      ASSERT_EQ(below.termination, Termination::kInfeasible);
      ASSERT_EQ(below.smallest_budget, Bytes(best[s].peak));
    } else {
      ASSERT_EQ(below.termination, Termination::kOptimal);
      ASSERT_EQ(below.plan->time.count(), best[s - 1].time);
    }
  }
}

TEST_P(JoinOracle, EqualsTheBestOfAllSchedulesOfItsClass) {
  const Family& family = GetParam();
  std::mt19937_64 random(family.seed);
  int joins = 0, steps = 0;
  for (int number = 0; joins < test_scale(family.joins); ++number) {
    ASSERT_LT(number, test_scale(family.joins) * 4) << "too many joins are too large";
    const Join join = random_join(random, family.options);
    const auto best = branch_frontier(join, kScheduleLimit);
    if (!best) continue;
    SCOPED_TRACE("seed " + std::to_string(family.seed) + ", number " + std::to_string(number) +
                 ": " + describe(join));
    ++joins;
    steps += static_cast<int>(best->size());
    expect_equal_at_every_step(join, *best);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(steps, joins);  // memory and time are traded
}

// Calls visit(interleaving) for all orders of the backwards.
template <class Visit>
void for_each_interleaving(const Join& join, const Visit& visit) {
  Interleaving order = plain_interleaving(join);
  std::sort(order.begin(), order.end());
  do visit(order);
  while (std::next_permutation(order.begin(), order.end()));
}

TEST(JoinPlanner, IsNeverBelowTheBestPlanOfAnyKind) {
  std::mt19937_64 random(7);
  int questions = 0, equal = 0, refused = 0;
  for (int number = 0; number < test_scale(40); ++number) {
    const Join join = random_join(random, joins_of(2, 2, 1));
    SCOPED_TRACE("number " + std::to_string(number) + ": " + describe(join));
    const int64_t plain = baseline(lower(join)).peak.count();
    const auto less = random() % static_cast<uint64_t>(plain / 2 + 1);
    const int64_t budget = plain - static_cast<int64_t>(less);
    std::optional<int64_t> least;
    for_each_interleaving(join, [&](const Interleaving& order) {
      const auto time = least_time_of_any_plan(lower(join, order), budget);
      if (time && (!least || *time < *least)) least = time;
    });
    const PlanResult result = plan(join, with("join", Bytes(budget)));
    if (!least) {
      EXPECT_FALSE(result.plan.has_value());
      continue;
    }
    ++questions;
    if (!result.plan) {
      ++refused;
      continue;
    }
    EXPECT_GE(result.plan->time.count(), *least);
    equal += result.plan->time.count() == *least;
  }
  std::cout << questions << " questions with a plan: " << equal << " answers as fast as any plan, "
            << refused << " refused\n";
  EXPECT_GT(2 * equal, questions);
}

// The order of shared weights costs time or memory in some plans; otherwise these tests show nothing.
TEST(JoinPlanner, SharedWeightsHinderSomePlans) {
  std::mt19937_64 random(10);
  int hindered = 0;
  for (int number = 0; number < 100; ++number) {
    const Join join = random_join(random, with_shared_weights(2, 3));
    Join free = join;
    free.shared.clear();
    const auto best = branch_frontier(join, kScheduleLimit);
    const auto best_free = branch_frontier(free, kScheduleLimit);
    if (best && best_free) hindered += *best != *best_free;
  }
  EXPECT_GT(hindered, 5);
}

INSTANTIATE_TEST_SUITE_P(Families, JoinOracle, ::testing::ValuesIn(families()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace reprise::testing
