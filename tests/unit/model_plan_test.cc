#include <gtest/gtest.h>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/model/plan.h"
#include "support/build_graph.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

TEST(WithFrees, AValueIsFreedRightAfterItsLastReadInOrderOfIndex) {
  Graph graph;
  const ValueIndex x = add_value(graph, "x", 1, ValueKind::kInput);
  const ValueIndex p = add_value(graph, "p", 1);
  const ValueIndex q = add_value(graph, "q", 1);
  const ValueIndex r = add_value(graph, "r", 1);
  add_op(graph, "a", {make_variant(1, {x}, {q, p})});
  add_op(graph, "b", {make_variant(1, {q, p}, {r})});
  graph.results = {r};
  EXPECT_EQ(with_frees(graph, {{0, 0}, {1, 0}}),
            (std::vector<Action>{run("a"), run("b"), release("p"), release("q")}));
}

TEST(WithFrees, AValueThatIsNeverReadIsFreedAtOnce) {
  Graph graph = two_op_graph();
  const ValueIndex extra = add_value(graph, "extra", 1);
  graph.ops[0].variants[0].writes.push_back(extra);
  EXPECT_EQ(with_frees(graph, {{0, 0}, {1, 0}}),
            (std::vector<Action>{run("a"), release("extra"), run("b"), release("y")}));
}

TEST(WithFrees, AValueThatIsWrittenAgainIsFreedBefore) {
  const Graph graph = two_op_graph();
  EXPECT_EQ(with_frees(graph, {{0, 0}, {0, 0}, {1, 0}}),
            (std::vector<Action>{run("a"), release("y"), run("a"), run("b"), release("y")}));
}

TEST(WithFrees, AResultIsLiveFromItsLastWriteOnOnly) {
  Graph graph = two_op_graph();
  graph.results = {1, 2};
  // y is a result. The copy that b reads is freed, and the one of the second run of a stays.
  EXPECT_EQ(with_frees(graph, {{0, 0}, {1, 0}, {0, 0}}),
            (std::vector<Action>{run("a"), run("b"), release("y"), run("a")}));
}

TEST(WithFrees, ConsumedAndReusedValuesNeedNoFree) {
  Graph graph = two_op_graph();
  graph.ops[1].variants[0].consumes = {1};
  EXPECT_EQ(with_frees(graph, {{0, 0}, {1, 0}}), (std::vector<Action>{run("a"), run("b")}));
  graph = two_op_graph();
  graph.values[2].bytes = graph.values[1].bytes;
  graph.ops[1].variants[0].reuses = {{2, 1}};
  EXPECT_EQ(with_frees(graph, {{0, 0}, {1, 0}}), (std::vector<Action>{run("a"), run("b")}));
}

TEST(WithFrees, ReadingWhatIsNotThereIsOurMistake) {
  Graph graph = two_op_graph();
  EXPECT_THROW(with_frees(graph, {{1, 0}}), InternalError);
  EXPECT_THROW(with_frees(graph, {{7, 0}}), InternalError);
  EXPECT_THROW(with_frees(graph, {{0, 3}}), InternalError);
  graph.ops[1].variants[0].consumes = {1};
  EXPECT_THROW(with_frees(graph, {{0, 0}, {1, 0}, {1, 0}}), InternalError);
}

TEST(WithFrees, NoRunsNoActions) { EXPECT_TRUE(with_frees(two_op_graph(), {}).empty()); }

// This is a checkpointed plan of the example chain, written by hand.
TEST(WithFrees, ARecomputedStageIsFreedBetweenItsRuns) {
  const Graph graph = lower(example_chain());
  // F0 fast, F1 keep, loss, B1, F0 keep, B0
  EXPECT_EQ(with_frees(graph, {{0, 0}, {1, 1}, {2, 0}, {3, 0}, {0, 1}, {4, 0}}),
            (std::vector<Action>{run("F0", "fast"), run("F1", "keep"), run("loss"),
                                 run("B1", "keep"), release("x1"), release("x2"), release("g2"),
                                 release("s1.keep"), run("F0", "keep"), run("B0", "keep"),
                                 release("x1"), release("g1"), release("s0.keep")}));
}

TEST(PlainRuns, AChainKeepsEveryStageWithItsFirstOption) {
  EXPECT_EQ(plain_runs(lower(example_chain())),
            (std::vector<reprise::Run>{{0, 1}, {1, 1}, {2, 0}, {3, 0}, {4, 0}}));
}

TEST(PlainRuns, TheFirstVariantThatWritesAllThatIsReadLaterRuns) {
  Graph graph = two_op_graph();
  const ValueIndex saved = add_value(graph, "saved", 1);
  graph.ops[0].variants = {make_variant(1, {0}, {1}), make_variant(1, {0}, {1, saved})};
  graph.ops[1].variants = {make_variant(1, {1}, {2})};
  EXPECT_EQ(plain_runs(graph), (std::vector<reprise::Run>{{0, 0}, {1, 0}}));
  graph.ops[1].variants = {make_variant(1, {1, saved}, {2})};
  EXPECT_EQ(plain_runs(graph), (std::vector<reprise::Run>{{0, 1}, {1, 0}}));
}

// b writes t itself, so a need not, although a could.
TEST(PlainRuns, AValueThatIsWrittenAgainBeforeItIsReadNeedsNoEarlierMaker) {
  Graph graph = two_op_graph();
  const ValueIndex t = add_value(graph, "t", 1);
  graph.ops[0].variants = {make_variant(1, {0}, {1}), make_variant(1, {0}, {1, t})};
  graph.ops[1].variants = {make_variant(1, {1}, {2, t})};
  graph.results = {2, t};
  EXPECT_EQ(plain_runs(graph), (std::vector<reprise::Run>{{0, 0}, {1, 0}}));
}

TEST(PlainRuns, ReplayVariantsAreNotForPlainTraining) {
  Graph graph = two_op_graph();
  Variant replay = graph.ops[0].variants[0];
  replay.role = Role::kReplay;
  Variant first = graph.ops[0].variants[0];
  first.role = Role::kFirst;
  graph.ops[0].variants = {replay, first};
  EXPECT_EQ(plain_runs(graph), (std::vector<reprise::Run>{{0, 1}, {1, 0}}));
}

TEST(PlainRuns, TheFirstRealizationOfAChoiceRuns) {
  Graph graph = two_op_graph();
  add_op(graph, "b2", {make_variant(1, {1}, {2})});
  graph.choices = {{"which", {{"", {2}}, {"", {1}}}}};
  EXPECT_EQ(plain_runs(graph), (std::vector<reprise::Run>{{0, 0}, {2, 0}}));
  graph.choices = {{"which", {{"", {1}}, {"", {2}}}}};
  EXPECT_EQ(plain_runs(graph), (std::vector<reprise::Run>{{0, 0}, {1, 0}}));
}

TEST(PlainRuns, AVariantThatTakesWhatIsReadLaterIsPassedOver) {
  Graph graph = two_op_graph();
  const ValueIndex last = add_value(graph, "last", 1);
  Variant taking = graph.ops[1].variants[0];
  taking.consumes = {1};
  graph.ops[1].variants.insert(graph.ops[1].variants.begin(), taking);
  EXPECT_EQ(plain_runs(graph)[1], (reprise::Run{1, 0}));
  add_op(graph, "c", {make_variant(1, {1}, {last})});
  EXPECT_EQ(plain_runs(graph)[1], (reprise::Run{1, 1}));
}

TEST(PlainRuns, AGraphWithoutPlainTrainingIsAnInputError) {
  Graph graph = two_op_graph();
  graph.ops[1].variants[0].consumes = {1};
  add_value(graph, "last", 1);
  add_op(graph, "c", {make_variant(1, {1}, {3})});
  try {
    plain_runs(graph);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("\"b\""), std::string::npos) << error.what();
  }
}

TEST(PlainRuns, TerminationsArePrintedAsInFiles) {
  EXPECT_STREQ(to_string(Termination::kOptimal), "optimal");
  EXPECT_STREQ(to_string(Termination::kFeasible), "feasible");
  EXPECT_STREQ(to_string(Termination::kInfeasible), "infeasible");
  EXPECT_STREQ(to_string(Termination::kTimeLimit), "time_limit");
}

}  // namespace
}  // namespace reprise::testing
