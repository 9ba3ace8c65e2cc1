// Compares the demands of moments, stretches of time and pairs of moments with exhaustive search
// over all plans. Given assumptions, the search is over the plans for which these are true.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "oracle/exhaustive.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/moment.h"
#include "plan/graph/bound/pairs.h"
#include "reprise/check/simulate.h"
#include "support/graph_families.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

using internal::bound::Assumption;
using internal::bound::Moment;
using internal::bound::MomentCost;
using internal::common::GraphFacts;

struct MomentCase {
  std::vector<Assumption> assumptions;
  std::vector<Condition> conditions;  // the assumptions as conditions
};

// Lets the assumption mean any of the ordered ops of a realization.
void mean_any(std::mt19937_64& random, Moment& moment) {
  for (Moment::Realization& realization : moment.realizations) {
    realization.at = realization.ops[random() % realization.ops.size()];
  }
}

// Returns by op which values are live when it runs in a plan, without those that it takes. The
// entry is empty if the op did not run.
std::vector<std::optional<std::vector<char>>> live_in(const Graph& graph,
                                                      const std::vector<Run>& runs) {
  std::vector<std::optional<std::vector<char>>> at(graph.ops.size());
  std::vector<char> live(graph.values.size(), 0);
  std::map<std::string, ValueIndex> by_id;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    by_id[graph.values[v].id] = static_cast<ValueIndex>(v);
  }
  auto run = runs.begin();
  for (const Action& action : with_frees(graph, runs)) {
    if (action.kind == ActionKind::kFree) {
      live[by_id.at(action.id)] = 0;
      continue;
    }
    const Variant& variant = graph.ops[run->op].variants[run->variant];
    for (const ValueIndex value : variant.consumes) live[value] = 0;
    for (const auto& [written, read] : variant.reuses) live[read] = 0;
    at[run->op] = live;
    for (const ValueIndex value : variant.writes) live[value] = 1;
    ++run;
  }
  return at;
}

// Makes up to three assumptions that are true for a random plan.
MomentCase random_case(std::mt19937_64& random, const Graph& graph, const std::vector<Moment>& moments,
                 const std::vector<Run>& runs) {
  const auto live = live_in(graph, runs);
  MomentCase made;
  for (size_t count = random() % 4; count > 0; --count) {
    const Moment& moment = moments[random() % moments.size()];
    const auto value = static_cast<ValueIndex>(random() % graph.values.size());
    if (graph.values[value].kind == ValueKind::kInput) continue;
    for (const Moment::Realization& realization : moment.realizations) {
      if (!live[realization.at]) continue;
      const bool is_live = (*live[realization.at])[value] != 0;
      made.assumptions.push_back(assume_at(moment, value, is_live));
      for (const Moment::Realization& other : moment.realizations) {
        made.conditions.push_back({other.at, value, is_live});
      }
    }
  }
  return made;
}

struct MomentRecord {
  int64_t asked = 0, with_a_plan = 0, exact = 0;
  int64_t pairs = 0, more = 0, exact_pairs = 0;
};

class GraphMoments : public ::testing::TestWithParam<GraphFamily> {
 protected:
  // Checks each moment on its own, and all pairs of stretches.
  void expect_bounds(const Graph& graph, const std::vector<Moment>& moments, const MomentCase& one,
                     int64_t budget) {
    const GraphFacts facts(graph);
    const std::optional<int64_t> best = least_time_of_any_plan(graph, budget, one.conditions);
    ++record_.asked;
    if (!best) return;
    ++record_.with_a_plan;
    const int64_t extra = *best - facts.least_time.count();
    int64_t most = 0;
    for (size_t k = 0; k < moments.size(); ++k) {
      SCOPED_TRACE("moment of op " + graph.ops[moments[k].first].id);
      const auto whole = cost_of_moment(facts, moments[k], budget, one.assumptions);
      ASSERT_TRUE(whole) << "there is a plan of " << *best;
      ASSERT_LE(whole->time, extra);
      most = std::max(most, whole->time);
      for (size_t later = k + 1; later < moments.size(); ++later) {
        SCOPED_TRACE("and of op " + graph.ops[moments[later].first].id);
        const auto until = cost_of_moment(facts, moments[k], budget, one.assumptions,
                                          {moments[later].first, true});
        const auto from =
            cost_of_moment(facts, moments[later], budget, one.assumptions, {-1, true});
        ASSERT_TRUE(until && from);
        ASSERT_LE(until->time + from->time, extra);
        most = std::max(most, until->time + from->time);
      }
    }
    record_.exact += most == extra;
  }

  // Checks all pairs of moments.
  void expect_bounds_of_pairs(const Graph& graph, const std::vector<Moment>& moments,
                              int64_t budget) {
    const GraphFacts facts(graph);
    const std::optional<int64_t> best = least_time_of_any_plan(graph, budget, {});
    if (!best) return;
    const int64_t extra = *best - facts.least_time.count();
    const internal::common::SearchControl control(PlanOptions{}, "test");
    int64_t single = 0, most = 0;
    for (size_t k = 0; k < moments.size(); ++k) {
      single = std::max(single, cost_of_moment(facts, moments[k], budget).value().time);
      for (size_t later = k + 1; later < moments.size(); ++later) {
        SCOPED_TRACE("pair of ops " + graph.ops[moments[k].first].id + " and " +
                     graph.ops[moments[later].first].id);
        const auto pair = cost_of_pair(facts, moments[k], moments[later], budget, -1, control);
        ASSERT_TRUE(pair) << "there is a plan of " << *best;
        ASSERT_LE(*pair, extra);
        most = std::max(most, *pair);
      }
    }
    ++record_.pairs;
    record_.more += most > single;
    record_.exact_pairs += std::max(most, single) == extra;
  }

  MomentRecord record_;
};

TEST_P(GraphMoments, OfAPairDemandNoMoreThanAnyPlan) {
  for_graphs(GetParam(), [&](const Graph& graph, std::mt19937_64& random) {
    std::vector<Moment> moments = internal::bound::moments_of(GraphFacts(graph));
    for (int question = 0; question < 2; ++question) {
      for (Moment& moment : moments) mean_any(random, moment);
      const std::vector<reprise::Run> runs = random_runs(random, graph, 8);
      const int64_t peak = simulate(graph, with_frees(graph, runs)).peak.count();
      const auto budget = peak + 2 - static_cast<int64_t>(random() % 8);
      SCOPED_TRACE("budget " + std::to_string(budget));
      expect_bounds_of_pairs(graph, moments, budget);
      if (HasFatalFailure()) return;
    }
  });
  std::cout << GetParam().name << ": " << record_.pairs
            << " questions, pairs demand more than moments in " << record_.more
            << ", equal to the least time in " << record_.exact_pairs << "\n";
  EXPECT_GT(record_.exact_pairs, 0);
}

TEST_P(GraphMoments, DemandNoMoreThanThePlansOfTheirCase) {
  for_graphs(GetParam(), [&](const Graph& graph, std::mt19937_64& random) {
    std::vector<Moment> moments = internal::bound::moments_of(GraphFacts(graph));
    for (Moment& moment : moments) mean_any(random, moment);
    for (int question = 0; question < 12; ++question) {
      const std::vector<reprise::Run> runs = random_runs(random, graph, 8);
      const MomentCase one = random_case(random, graph, moments, runs);
      // The budget is around the peak of that plan, or below it.
      const int64_t peak = simulate(graph, with_frees(graph, runs)).peak.count();
      const auto budget = peak + 2 - static_cast<int64_t>(random() % 8);
      std::string text = "budget " + std::to_string(budget);
      for (const Condition& condition : one.conditions) {
        text += ", " + graph.values[condition.value].id + (condition.live ? " live" : " not live") +
                " at " + graph.ops[condition.op].id;
      }
      SCOPED_TRACE(text);
      expect_bounds(graph, moments, one, budget);
      if (HasFatalFailure()) return;
    }
  });
  std::cout << GetParam().name << ": " << record_.asked << " cases, " << record_.with_a_plan
            << " with a plan, equal to its time in " << record_.exact << "\n";
  EXPECT_GT(record_.exact, 0);
}

// A and B are ops of a choice, and Q is between them. An assumption about the choice speaks of A or
// of B. The last op reads v, and so does the loss or Q; M makes v in 7 ns.
constexpr OpIndex kM = 0, kLoss = 1, kZ = 2, kA = 3, kQ = 4, kB = 5, kD = 6;
constexpr ValueIndex kX = 0, kV = 1;

Graph with_a_choice_around_q(OpIndex reader_of_v, int64_t workspace_of_z_and_q) {
  Graph graph;
  graph.values.push_back({"x", Bytes(), ValueKind::kInput});
  graph.values.push_back({"v", Bytes(10), ValueKind::kActivation});
  const auto add = [&](const std::string& id, Phase phase, std::vector<ValueIndex> reads,
                       std::optional<ValueIndex> written = std::nullopt) {
    Op op;
    op.id = id;
    op.phase = phase;
    if (!written) {
      written = static_cast<ValueIndex>(graph.values.size());
      graph.values.push_back({"of " + id, Bytes(), ValueKind::kGradient});
    }
    if (static_cast<OpIndex>(graph.ops.size()) == reader_of_v) reads.push_back(kV);
    Variant variant;
    variant.name = "k";
    variant.reads = std::move(reads);
    variant.writes = {*written};
    op.variants = {variant};
    graph.ops.push_back(op);
    return *written;
  };
  add("M", Phase::kForward, {kX}, kV);
  const ValueIndex of_loss = add("loss", Phase::kLoss, {kX});
  add("Z", Phase::kBackward, {of_loss});
  const ValueIndex of_choice = add("A", Phase::kBackward, {of_loss});
  const ValueIndex of_q = add("Q", Phase::kBackward, {of_loss});
  add("B", Phase::kBackward, {of_loss}, of_choice);
  const ValueIndex of_d = add("D", Phase::kBackward, {of_q});
  graph.results = {add("E", Phase::kBackward, {of_d, kV})};
  graph.ops[kM].variants[0].time = Nanos(7);
  for (const OpIndex op : {kZ, kQ}) {
    graph.ops[op].variants[0].workspace = Bytes(workspace_of_z_and_q);
  }
  graph.choices = {{"c", {{"", {kA}}, {"", {kB}}}}};
  validate(graph);
  return graph;
}

const Moment& moment_of(const std::vector<Moment>& moments, OpIndex first) {
  return *std::ranges::find(moments, first, &Moment::first);
}

// v is made for Q for the first time, after A. It was not live at A, but it need not have been gone
// before D.
TEST(GraphMomentsOfChoices, WhatRunsBeforeTheLastOfTheirOpsMayRunAfterTheFirst) {
  const Graph graph = with_a_choice_around_q(kQ, 0);
  const GraphFacts facts(graph);
  const std::vector<Moment> moments = internal::bound::moments_of(facts);
  const auto best = least_time_of_any_plan(graph, 100, {{kA, kV, false}, {kB, kV, false}});
  EXPECT_EQ(best, 7);
  const auto cost = cost_of_moment(facts, moment_of(moments, kD), 100,
                                   {assume_at(moment_of(moments, kA), kV, false)});
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->time, 0);
}

// v is live at B and not at Q. It is made between them for the first time, so it was not gone at Q.
TEST(GraphMomentsOfChoices, WhatIsLiveAtTheLastOfTheirOpsMayBeMadeAfterOthers) {
  const Graph graph = with_a_choice_around_q(-1, 0);
  const GraphFacts facts(graph);
  const std::vector<Moment> moments = internal::bound::moments_of(facts);
  const auto best =
      least_time_of_any_plan(graph, 100, {{kA, kV, true}, {kB, kV, true}, {kQ, kV, false}});
  EXPECT_EQ(best, 7);
  const auto cost = cost_of_moment(
      facts, moment_of(moments, kD), 100,
      {assume_at(moment_of(moments, kA), kV, true), assume_at(moment_of(moments, kQ), kV, false)});
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->time, 0);
}

// v is live at B because it is made after Q, not before.
TEST(GraphMomentsOfChoices, WhatIsLiveAtTheLastOfTheirOpsMayBeMadeInALaterStretch) {
  const Graph graph = with_a_choice_around_q(kLoss, 95);
  const GraphFacts facts(graph);
  const std::vector<Moment> moments = internal::bound::moments_of(facts);
  const auto best = least_time_of_any_plan(graph, 100, {{kA, kV, true}, {kB, kV, true}});
  EXPECT_EQ(best, 14);
  const std::vector<Assumption> live = {assume_at(moment_of(moments, kA), kV, true)};
  const auto until = cost_of_moment(facts, moment_of(moments, kZ), 100, live, {kQ, true});
  const auto from = cost_of_moment(facts, moment_of(moments, kQ), 100, live, {-1, true});
  ASSERT_TRUE(until && from);
  EXPECT_GT(until->time + from->time, 0);
  EXPECT_LE(until->time + from->time, 7);
}

INSTANTIATE_TEST_SUITE_P(Families, GraphMoments, ::testing::ValuesIn(graph_families()),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace reprise::testing
