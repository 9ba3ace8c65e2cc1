// Checks the families of schedules that the simpler planners try.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "plan/baselines/revolve.h"
#include "plan/common/candidates.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/build_graph.h"
#include "support/refusal.h"

namespace reprise::testing {
namespace {

// t(n, s) is the number of fast runs that reversing n equal steps takes with s slots, one of which
// holds the input.
std::vector<std::vector<int64_t>> least_fast_runs(size_t most) {
  std::vector<std::vector<int64_t>> t(most + 1, std::vector<int64_t>(most + 1, 0));
  for (size_t n = 2; n <= most; ++n) {
    t[n][1] = static_cast<int64_t>(n * (n - 1) / 2);
    for (size_t s = 2; s <= most; ++s) {
      t[n][s] = INT64_MAX;
      for (size_t j = 1; j < n; ++j) {
        t[n][s] = std::min(t[n][s], static_cast<int64_t>(j) + t[n - j][s - 1] + t[j][s]);
      }
    }
  }
  return t;
}

TEST(Revolve, SchedulesAreOptimal) {
  constexpr size_t kMost = 60;
  const auto least = least_fast_runs(kMost);
  for (size_t n = 1; n <= kMost; ++n) {
    for (size_t s = 1; s <= n; ++s) {
      const auto runs = static_cast<int64_t>(internal::baselines::revolve_runs(n, s).size());
      ASSERT_EQ(runs - static_cast<int64_t>(2 * n + 1), least[n][s]) << n << " stages, " << s;
    }
  }
}

// Stages have unit time and size, so the bytes that a schedule holds are its slots.
Chain unit_chain(size_t stages, std::vector<int64_t> kept = {}) {
  Chain chain;
  chain.name = "unit";
  chain.input.bytes = Bytes(1);
  for (size_t i = 0; i < stages; ++i) {
    Stage stage;
    stage.output = Bytes(1);
    stage.output_gradient = Bytes(0);
    stage.forward.time = Nanos(1);
    const Bytes saved(kept.empty() ? 0 : kept[i] - 1);
    stage.options.push_back(
        {.saved = saved, .forward = {Nanos(1), {}}, .backward = {Nanos(1), {}}});
    chain.stages.push_back(stage);
  }
  return chain;
}

TEST(Revolve, SchedulesHoldNoMoreThanTheirSlots) {
  const Chain chain = unit_chain(30);
  const Graph graph = lower(chain);
  for (size_t slots = 1; slots <= 30; ++slots) {
    const auto actions = with_frees(graph, internal::baselines::revolve_runs(30, slots));
    // Two states come on top of the slots: the one that a forward reads and the one that it writes.
    EXPECT_LE(simulate(graph, actions).peak.count(), static_cast<int64_t>(slots) + 2);
  }
}

// A kept stage does not run again in its segment, so there are fewer runs of the same splits. A
// slot holds the input, the two saved bytes and the output of a stage.
TEST(Revolve, HistoriesRunLessAndHoldNoMoreThanTheirSlots) {
  using internal::baselines::Held;
  const Chain chain = unit_chain(30, std::vector<int64_t>(30, 3));
  const Graph graph = lower(chain);
  for (size_t slots = 2; slots <= 30; ++slots) {
    const auto runs = internal::baselines::revolve_runs(30, slots, Held::kHistories);
    EXPECT_LT(runs.size(), internal::baselines::revolve_runs(30, slots, Held::kInputs).size());
    const Timeline timeline = simulate(graph, with_frees(graph, runs));
    EXPECT_LE(timeline.peak.count(), 4 * static_cast<int64_t>(slots) + 4) << slots << " slots";
    // Every stage runs backward once, after the last run of its forward that keeps something.
    EXPECT_EQ(std::count_if(runs.begin(), runs.end(), [](const auto& run) { return run.op > 30; }),
              30);
    EXPECT_EQ(
        std::count_if(runs.begin(), runs.end(), [](const auto& run) { return run.variant == 1; }),
        30);
  }
  const auto all_kept = internal::baselines::revolve_runs(30, 30, Held::kHistories);
  EXPECT_EQ(all_kept.size(), 61u) << "as many slots as stages: plain training";
}

TEST(Revolve, TheClassChoosesTheFamily) {
  const Chain chain = unit_chain(12, std::vector<int64_t>(12, 2));
  PlanOptions ask{.budget = "100%", .planner = "revolve"};
  const Baseline plain = baseline(lower(chain));
  EXPECT_EQ(plan(chain, ask).plan->time, plain.time);
  ask.schedule_class = "persistent";
  EXPECT_EQ(plan(chain, ask).plan->time, plain.time);
  ask.schedule_class = "histories";
  EXPECT_EQ(plan(chain, ask).plan->time, plain.time);
  ask.schedule_class = "inputs-only";
  EXPECT_EQ(plan(chain, ask).plan->time, plain.time + Nanos(11)) << "all but the last run twice";
  ask.schedule_class = "floating";
  expect_refusal([&] { plan(chain, ask); }, "has no schedule class 'floating'");
}

TEST(Periodic, TriesEveryCutThatAThresholdOnKeptBytesGives) {
  const std::vector<int64_t> kept{5, 1, 1, 9, 2, 4, 4, 1};
  const Chain chain = unit_chain(kept.size(), kept);
  // Collects the peaks and times of every greedy cut, by trying every threshold.
  std::set<std::pair<int64_t, int64_t>> tried;
  PlanOptions options;
  options.planner = "periodic";
  const Frontier curve = frontier(chain, options);
  for (const FrontierPoint& point : curve.points) {
    tried.insert({point.peak.count(), point.time.count()});
  }
  const Graph graph = lower(chain);
  const ChainIndex index{kept.size()};
  for (int64_t threshold = 0; threshold <= 27; ++threshold) {
    std::vector<size_t> cuts{0};
    for (int64_t i = 1, sum = kept[0]; i < static_cast<int64_t>(kept.size()); ++i) {
      const int64_t next = kept[static_cast<size_t>(i)];
      sum = sum + next <= threshold ? sum + next : (cuts.push_back(static_cast<size_t>(i)), next);
    }
    std::vector<reprise::Run> runs;
    for (size_t i = 0; i < cuts.back(); ++i) runs.push_back({index.forward(i), 0});
    cuts.push_back(kept.size());
    for (size_t c = cuts.size() - 1; c-- > 0;) {
      for (size_t i = cuts[c]; i < cuts[c + 1]; ++i) runs.push_back({index.forward(i), 1});
      if (cuts[c + 1] == kept.size()) runs.push_back({index.loss(), 0});
      for (size_t i = cuts[c + 1]; i-- > cuts[c];) runs.push_back({index.backward(i), 0});
    }
    const Timeline timeline = simulate(graph, with_frees(graph, runs));
    // The planner found this cut or a better one at this budget.
    options.budget = timeline.peak;
    ASSERT_LE(plan(chain, options).plan->time, timeline.time) << "threshold " << threshold;
  }
  EXPECT_GT(tried.size(), 2u);
}

// y is made by op "a", or together with z by op "b". Both ops have an approximate variant first.
Graph graph_with_a_choice() {
  Graph graph;
  graph.name = "choice";
  graph.values = {{"x", Bytes(1), ValueKind::kInput}, {"y", Bytes(2)}, {"z", Bytes(4)}};
  Variant rough;
  rough.name = "rough";
  rough.time = Nanos(1);
  rough.reads = {0};
  rough.writes = {1};
  rough.exactness = Exactness::kApproximate;
  Variant exact = rough;
  exact.name = "exact";
  exact.time = Nanos(5);
  exact.exactness = Exactness::kBitwise;
  Variant last = exact;
  last.reads = {1};
  last.writes = {2};
  graph.ops = {{.id = "a", .variants = {rough}},
               {.id = "b", .variants = {rough, exact}},
               {.id = "c", .variants = {last}}};
  graph.choices = {{"which", {{"", {0}}, {"", {1}}}}};
  graph.results = {2};
  return graph;
}

TEST(KeepAll, RunsOnlyVariantsAndRealizationsThatAreAllowed) {
  const Graph graph = graph_with_a_choice();
  PlanOptions options;
  options.allow = Exactness::kApproximate;
  const PlanResult rough = plan(graph, options);
  ASSERT_EQ(rough.termination, Termination::kOptimal);
  EXPECT_EQ(rough.plan->actions.front(), (Action{ActionKind::kRun, "a", "rough"}));
  options.allow = Exactness::kBitwise;
  const PlanResult exact = plan(graph, options);
  ASSERT_EQ(exact.termination, Termination::kOptimal);
  EXPECT_EQ(exact.plan->actions.front(), (Action{ActionKind::kRun, "b", "exact"}));
  EXPECT_EQ(exact.plan->time, Nanos(10));

  Graph without = graph;
  without.ops[1].variants.pop_back();
  EXPECT_THROW(plan(without, options), InputError);
}

// The rough variant leaves a mask beside its result. One of the two readers of the result needs
// only the mask.
TEST(GraphPlanner, WaysThatReadWhatNoAllowedOneWritesAreLeftOut) {
  Graph graph = two_op_graph();
  const ValueIndex x = 0, y = 1, z = 2, mask = add_value(graph, "mask", 1);
  graph.ops[0].variants.push_back(make_variant(1, {x}, {y, mask}));
  graph.ops[0].variants.back().name = "rough";
  graph.ops[0].variants.back().exactness = Exactness::kRounding;
  graph.ops[1].variants.push_back(make_variant(1, {mask}, {z}));
  graph.ops[1].variants.back().name = "of mask";
  for (const char* planner : {"graph", "keep_all", "dtr"}) {
    SCOPED_TRACE(planner);
    PlanOptions options;
    options.planner = planner;
    const PlanResult exact = plan(graph, options);
    ASSERT_TRUE(exact.plan.has_value());
    EXPECT_EQ(exact.plan->time, Nanos(3));
    EXPECT_TRUE(verify(graph, *exact.plan, exact.budget, problem_id(graph)).empty());

    Graph without = graph;
    without.ops[1].variants.erase(without.ops[1].variants.begin());
    EXPECT_THROW(plan(without, options), InputError);
  }
}

}  // namespace
}  // namespace reprise::testing
