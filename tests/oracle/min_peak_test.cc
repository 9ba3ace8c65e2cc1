// Compares the planner min_peak with all sets of checkpoints, as the simulator costs them: the same
// smallest budget and the same best time at every budget.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"

namespace reprise::testing {
namespace {

// Writes a schedule down from its definition: the stages in `kept` are the inputs that stay.
std::vector<reprise::Run> runs_of(size_t stages, uint32_t kept) {
  const ChainIndex index{stages};
  const auto starts = [&](size_t stage) { return stage == 0 || (kept >> stage & 1) != 0; };
  std::vector<reprise::Run> runs;
  size_t last = stages - 1;
  while (!starts(last)) --last;
  for (size_t i = 0; i < last; ++i) runs.push_back({index.forward(i), 0});
  for (size_t end = stages; end > 0;) {
    size_t begin = end - 1;
    while (!starts(begin)) --begin;
    for (size_t i = begin; i < end; ++i) runs.push_back({index.forward(i), 1});
    if (end == stages) runs.push_back({index.loss(), 0});
    for (size_t i = end; i > begin; --i) runs.push_back({index.backward(i - 1), 0});
    end = begin;
  }
  return runs;
}

// Returns the least time of any set, by its exact peak.
std::map<int64_t, int64_t> all_sets(const Chain& chain) {
  const Graph graph = lower(chain);
  const size_t stages = chain.stages.size();
  std::map<int64_t, int64_t> least;
  for (uint32_t kept = 0; kept < uint32_t{1} << stages; kept += 2) {
    const Timeline timeline = simulate(graph, with_frees(graph, runs_of(stages, kept)));
    const auto [entry, fresh] = least.try_emplace(timeline.peak.count(), timeline.time.count());
    if (!fresh) entry->second = std::min(entry->second, timeline.time.count());
  }
  return least;
}

// Compares the planner's curve, and its answer at the budgets around each step of the oracle.
void expect_best_of_all_sets(const Chain& chain) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // peaks ascending, times descending
  for (const auto& [peak, time] : all_sets(chain)) {
    if (steps.empty() || time < steps.back().second) steps.emplace_back(peak, time);
  }
  const Frontier curve = frontier(chain, with("min_peak", Bytes()));
  ASSERT_EQ(curve.points.size(), steps.size());
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto& [peak, time] = steps[s];
    EXPECT_EQ(curve.points[s].peak.count(), peak);
    EXPECT_EQ(curve.points[s].time.count(), time);
    const PlanResult at = plan(chain, with("min_peak", Bytes(peak)));
    ASSERT_EQ(at.termination, Termination::kOptimal) << "budget " << peak;
    EXPECT_EQ(at.plan->peak.count(), peak);
    EXPECT_EQ(at.plan->time.count(), time);
    if (peak == 0) continue;
    const PlanResult below = plan(chain, with("min_peak", Bytes(peak - 1)));
    if (s == 0) {
      ASSERT_EQ(below.termination, Termination::kInfeasible);
      EXPECT_EQ(below.smallest_budget, Bytes(peak));
    } else {
      ASSERT_TRUE(below.plan.has_value());
      EXPECT_EQ(below.plan->time.count(), steps[s - 1].second);
    }
  }
}

TEST(MinPeak, IsTheBestOfAllSetsOfCheckpoints) {
  for_chains(41, 250, any_chain(8),
             [](const Chain& chain, std::mt19937_64&) { expect_best_of_all_sets(chain); });
}

TEST(MinPeak, IsTheBestOfAllSetsWhereWorkspacesDecide) {
  RandomChainOptions options = any_chain(8);
  options.dominant_workspaces = true;
  for_chains(42, 250, options,
             [](const Chain& chain, std::mt19937_64&) { expect_best_of_all_sets(chain); });
}

TEST(MinPeak, IsTheBestOfAllSetsInTheFoundingModel) {
  RandomChainOptions options;
  options.founding_model = true;
  options.min_stages = options.max_stages = 10;
  for_chains(43, 20, options,
             [](const Chain& chain, std::mt19937_64&) { expect_best_of_all_sets(chain); });
}

// Every schedule of the family is persistent, so that the exact planner is never worse. How much
// less memory it needs is what re-running a value more than once is worth.
TEST(MinPeak, TheExactPlannerIsNeverWorse) {
  int lower_floor = 0, chains = 0;
  RandomChainOptions options;
  options.founding_model = true;
  options.max_stages = 9;
  for_chains(44, 100, options, [&](const Chain& chain, std::mt19937_64&) {
    const Frontier once = frontier(chain, with("min_peak", Bytes()));
    PlanOptions exact = with("chain", once.points.front().budget);
    exact.schedule_class = "persistent";
    const PlanResult result = plan(chain, exact);
    ASSERT_TRUE(result.plan.has_value());
    EXPECT_LE(result.plan->time, once.points.front().time);
    lower_floor +=
        frontier(chain, with("chain", Bytes())).points.front().budget < once.points.front().budget;
    ++chains;
  });
  EXPECT_GT(lower_floor, chains / 4);
}

// Segment number j is reversed while the j checkpoints before it are held. So segments of P - 1,
// P - 2, .. stages from the front need about P values, and P^2 / 2 stages fit: P is about 28 for
// 400 stages, where equal segments need 2 * 20.
TEST(MinPeak, NeedsLessThanTwoSquareRootsOnEqualStages) {
  Chain chain;
  chain.name = "equal";
  chain.input.bytes = Bytes(1);
  for (int i = 0; i < 400; ++i) {
    Stage stage;
    stage.output = Bytes(1);
    stage.output_gradient = Bytes(0);
    stage.forward.time = Nanos(1);
    StageOption option;
    option.forward.time = option.backward.time = Nanos(1);
    stage.options.push_back(option);
    chain.stages.push_back(stage);
  }
  const PlanResult none = plan(chain, with("min_peak", Bytes(0)));
  ASSERT_EQ(none.termination, Termination::kInfeasible);
  EXPECT_GE(none.smallest_budget->count(), 28);
  EXPECT_LE(none.smallest_budget->count(), 31);
}

}  // namespace
}  // namespace reprise::testing
