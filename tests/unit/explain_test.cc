#include "reprise/check/explain.h"

#include <gtest/gtest.h>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/report/json.h"
#include "reprise/report/text.h"
#include "support/build_graph.h"
#include "support/example_chain.h"
#include "support/naive_check.h"

namespace reprise::testing {
namespace {

TEST(Explain, HoldersAtThePeakAreSortedAndSumToIt) {
  const Graph graph = lower(example_chain());
  const Plan plan = claimed_plan(graph, with_frees(graph, plain_runs(graph)));
  const Explanation explanation = explain(graph, plan);
  EXPECT_EQ(explanation.peak_action, "run B1 keep");
  const std::vector<Holder> expected = {
      {"fixed", Bytes(100)}, {"x2", Bytes(30)},     {"g2", Bytes(30)},
      {"x1", Bytes(20)},     {"g1", Bytes(20)},     {"x0", Bytes(10)},
      {"s1.keep", Bytes(9)}, {"s0.keep", Bytes(7)}, {"workspace of B1", Bytes(4)},
      {"w1", Bytes(2)}};
  EXPECT_EQ(explanation.holders, expected);
  Bytes sum;
  for (const Holder& holder : explanation.holders) sum += holder.bytes;
  EXPECT_EQ(sum, explanation.timeline.peak);
  EXPECT_TRUE(explanation.recomputed.empty());
  EXPECT_EQ(explanation.recomputed_time, Nanos(0));
  EXPECT_EQ(explanation.baseline, plan.baseline);
}

// fixed, x0..x2, both saved values and g2 are live, and the loss has its workspace.
TEST(Explain, BytesAtTheLossAreThoseWhileItRuns) {
  const Graph graph = lower(example_chain());
  const Plan plain = claimed_plan(graph, with_frees(graph, plain_runs(graph)));
  const Bytes workspace = graph.ops[2].variants[0].workspace;
  EXPECT_EQ(explain(graph, plain).at_loss, Bytes(100 + 10 + 20 + 30 + 7 + 9 + 30) + workspace);
  const std::string json = explanation_json(explain(graph, plain));
  EXPECT_NE(json.find("\"loss_bytes\": "), std::string::npos) << json;
  Plan without_loss;
  without_loss.actions = {run("a")};
  EXPECT_EQ(explain(two_op_graph(), without_loss).at_loss, std::nullopt);
}

TEST(Explain, RecomputedOpsCostAllRunsButTheFirst) {
  const Graph graph = lower(example_chain());
  // F0 fast, F1 fast, F0 fast, F1 keep, loss, B1, F0 keep, B0
  const Plan plan = claimed_plan(
      graph, with_frees(graph, {{0, 0}, {1, 0}, {0, 0}, {1, 1}, {2, 0}, {3, 0}, {0, 1}, {4, 0}}));
  const Explanation explanation = explain(graph, plan);
  const std::vector<Recomputed> expected = {
      {"F0", 3, Nanos(10 + 11), Bytes(20 + 20 + 7), Bytes(0), "F1"},
      {"F1", 2, Nanos(21), Bytes(30 + 9), Bytes(0), "loss"}};
  EXPECT_EQ(explanation.recomputed, expected);
  EXPECT_EQ(explanation.recomputed_time, Nanos(42));
}

TEST(Explain, ASecondCopyIsPartOfItsValuesBytes) {
  const Graph graph = two_op_graph();
  Plan plan;
  plan.actions = {run("a"), run("a")};
  const Explanation explanation = explain(graph, plan);
  const std::vector<Holder> expected = {
      {"fixed", Bytes(100)}, {"y", Bytes(40)}, {"x", Bytes(10)}, {"workspace of a", Bytes(5)}};
  EXPECT_EQ(explanation.holders, expected);
}

TEST(Explain, ReRunsSayWhatTheyMakeAgainAndWhoReadsIt) {
  Graph graph = two_op_graph();  // a: x -> y (20 B)
  Op last = graph.ops[1];
  last.id = "c";
  last.variants[0].reads = {1, 2};
  last.variants[0].writes = {};
  last.variants[0].workspace = Bytes(0);
  Op peak = last;
  peak.id = "peak";
  peak.variants[0].reads = {2};
  peak.variants[0].workspace = Bytes(1000);
  graph.ops.push_back(peak);
  graph.ops.push_back(last);
  const Action drop{.kind = ActionKind::kFree, .id = "y", .variant = {}};
  Plan plan;
  plan.actions = {run("a"), run("b"), drop, run("peak"), run("a"), run("c")};
  const Nanos time = graph.ops[0].variants[0].time;
  const std::vector<Recomputed> expected = {{"a", 2, time, Bytes(20), Bytes(20), "c"}};
  EXPECT_EQ(explain(graph, plan).recomputed, expected);
  // Here y is there at the peak. It is dropped and made again behind the peak.
  plan.actions = {run("a"), run("b"), run("peak"), drop, run("a"), run("c")};
  const std::vector<Recomputed> there = {{"a", 2, time, Bytes(20), Bytes(0), "c"}};
  EXPECT_EQ(explain(graph, plan).recomputed, there);
  // Here it is made again before the peak.
  plan.actions = {run("a"), run("b"), drop, run("a"), run("peak"), run("c")};
  EXPECT_EQ(explain(graph, plan).recomputed, there);
}

TEST(Explain, ConsumedAndReusedValuesHoldNothingWhileTheirTakerRuns) {
  Graph graph = two_op_graph();
  graph.ops[1].variants[0].consumes = {1};
  Plan plan;
  plan.actions = {run("a"), run("b")};
  const std::vector<Holder> expected = {
      {"fixed", Bytes(100)}, {"z", Bytes(30)}, {"x", Bytes(10)}, {"workspace of b", Bytes(7)}};
  EXPECT_EQ(explain(graph, plan).holders, expected);
}

TEST(Explain, AlternativesAreCountedByKindWithTheirPrice) {
  Graph graph = two_op_graph();  // a: x -> y (40 B, 5 B workspace); b: y -> z (30 B, 7 B workspace)
  Variant over = graph.ops[1].variants[0];
  over.name = "in-place/y";
  over.alternative = "in-place";
  over.time += Nanos(3);
  over.workspace = Bytes(2);
  graph.ops[1].variants.push_back(over);
  Plan plan;
  plan.actions = {run("a"), run("b", "in-place/y")};
  const std::vector<AlternativeUse> expected = {
      {"in-place", 1, over.time, graph.ops[1].variants[0].time, Bytes(5)}};
  EXPECT_EQ(explain(graph, plan).alternatives, expected);
  graph.ops[1].variants[1].alternative.clear();  // Nothing takes the name apart.
  EXPECT_EQ(explain(graph, plan).alternatives.at(0).kind, "in-place/y");
  plan.actions = {run("a"), run("b")};
  EXPECT_TRUE(explain(graph, plan).alternatives.empty());
}

TEST(Explain, AnotherRealizationOfAChoiceIsAnAlternative) {
  Graph graph = two_op_graph();
  Op other = graph.ops[1];
  other.id = "b2";
  other.variants[0].time -= Nanos(1);
  other.variants[0].workspace = Bytes(0);
  graph.ops.push_back(other);
  graph.choices = {{"b", {{"", {1}}, {"by-rows", {2}}}}};
  Plan plan;
  plan.actions = {run("a"), run("b2")};
  const std::vector<AlternativeUse> expected = {
      {"by-rows", 1, other.variants[0].time, graph.ops[1].variants[0].time, Bytes(7)}};
  EXPECT_EQ(explain(graph, plan).alternatives, expected);
  graph.choices[0].realizations[1].name.clear();
  EXPECT_EQ(explain(graph, plan).alternatives.at(0).kind, "b");
}

TEST(Explain, AnApproximateAlternativeSaysItsLargestError) {
  Graph graph = two_op_graph();
  Op coarse = graph.ops[1];
  coarse.id = "b2";
  coarse.variants[0].exactness = Exactness::kApproximate;
  coarse.variants[0].error_ppm = 3922;
  graph.ops.push_back(coarse);
  graph.choices = {{"b", {{"", {1}}, {"compressed-8", {2}}}}};
  Plan plan;
  plan.actions = {run("a"), run("b")};
  EXPECT_TRUE(explain(graph, plan).alternatives.empty());
  EXPECT_EQ(explanation_text(explain(graph, plan)).find("off by"), std::string::npos);
  plan.actions = {run("a"), run("b2")};
  EXPECT_EQ(explain(graph, plan).alternatives.at(0).error_ppm, 3922);
  const std::string text = explanation_text(explain(graph, plan));
  EXPECT_NE(text.find("0.39 % of the largest element"), std::string::npos) << text;
  EXPECT_NE(explanation_json(explain(graph, plan)).find("\"error_ppm\": 3922"), std::string::npos);
}

TEST(Explain, AnotherOptionOfAStageIsAnAlternativeWithBothItsHalves) {
  const Chain chain = example_chain();
  const Graph graph = lower(chain);
  const StageOption &keep = chain.stages[0].options[0], &lean = chain.stages[0].options[1];
  Plan plan;
  plan.actions = {run("F0", "keep"), run("F1", "keep"), run("loss"), run("B1", "keep"),
                  run("B0", "keep")};
  EXPECT_TRUE(explain(graph, plan).alternatives.empty());
  plan.actions.front().variant = plan.actions.back().variant = "lean";
  const std::vector<AlternativeUse> expected = {{"lean", 1, lean.forward.time + lean.backward.time,
                                                 keep.forward.time + keep.backward.time,
                                                 keep.saved - lean.saved}};
  EXPECT_EQ(explain(graph, plan).alternatives, expected);
}

// The choice has two readers of one value each in place of one that reads both.
TEST(Explain, WhatAChoiceReadsCountsInWhatItSaves) {
  Graph graph = two_op_graph();
  const OpIndex first = add_op(graph, "first", {make_variant(4, {1}, {})});
  const OpIndex second = add_op(graph, "second", {make_variant(5, {2}, {}, 3)});
  const OpIndex whole = add_op(graph, "whole", {make_variant(8, {1, 2}, {}, 3)});
  graph.results.clear();
  graph.choices = {{"whole", {{"", {whole}}, {"one-by-one", {first, second}}}}};
  Plan plan;
  plan.actions = {run("a"), run("b"), run("first"), run("second")};
  const std::vector<AlternativeUse> expected = {
      {"one-by-one", 1, Nanos(9), Nanos(8), Bytes(20)}};  // y is not there beside z
  EXPECT_EQ(explain(graph, plan).alternatives, expected);
}

TEST(Explain, APlanWithoutActionsPeaksAtTheStart) {
  const Explanation explanation = explain(two_op_graph(), Plan{});
  EXPECT_EQ(explanation.peak_action, "start");
  const std::vector<Holder> expected = {{"fixed", Bytes(100)}, {"x", Bytes(10)}};
  EXPECT_EQ(explanation.holders, expected);
}

TEST(Explain, PlansThatCannotRunAreInputErrors) {
  Plan plan;
  plan.actions = {run("b")};
  EXPECT_THROW(explain(two_op_graph(), plan), InputError);
}

}  // namespace
}  // namespace reprise::testing
