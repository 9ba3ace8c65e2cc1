#include "reprise/check/simulate.h"

#include <gtest/gtest.h>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "support/build_graph.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

std::string pointer_of_error(const Graph& graph, const std::vector<Action>& actions) {
  try {
    simulate(graph, actions);
  } catch (const InputError& error) {
    return error.where().pointer;
  }
  return "no error";
}

TEST(Simulate, CountsFixedLiveWrittenAndWorkspace) {
  const Timeline timeline = simulate(two_op_graph(), {run("a"), run("b"), release("y")});
  ASSERT_EQ(timeline.steps.size(), 3u);
  EXPECT_EQ(timeline.initial, Bytes(110));
  EXPECT_EQ(timeline.steps[0], (TimelineStep{Bytes(135), Bytes(130), Nanos(0), Nanos(1)}));
  EXPECT_EQ(timeline.steps[1], (TimelineStep{Bytes(167), Bytes(160), Nanos(1), Nanos(2)}));
  EXPECT_EQ(timeline.steps[2], (TimelineStep{Bytes(160), Bytes(140), Nanos(3), Nanos(0)}));
  EXPECT_EQ(timeline.peak, Bytes(167));
  EXPECT_EQ(timeline.peak_action, 1);
  EXPECT_EQ(timeline.time, Nanos(3));
}

TEST(Simulate, ASecondCopyCountsWhileTheOpRunsOnly) {
  const Timeline timeline = simulate(two_op_graph(), {run("a"), run("a")});
  EXPECT_EQ(timeline.steps[1].during, Bytes(155));  // 100 + 10 + 20 + 20 + 5
  EXPECT_EQ(timeline.steps[1].after, Bytes(130));
}

TEST(Simulate, AReusedValueCountsOnceAndIsGone) {
  Graph graph = two_op_graph();
  graph.values[2].bytes = Bytes(20);
  graph.ops[1].variants[0].reuses = {{2, 1}};
  const Timeline timeline = simulate(graph, {run("a"), run("b")});
  EXPECT_EQ(timeline.steps[1].during, Bytes(137));  // 100 + 10 + 20 + 7
  EXPECT_EQ(timeline.steps[1].after, Bytes(130));
  EXPECT_EQ(pointer_of_error(graph, {run("a"), run("b"), release("y")}), "/actions/2");
}

TEST(Simulate, AConsumedValueIsNotCountedWhileTheOpRunsAndIsGone) {
  Graph graph = two_op_graph();
  graph.ops[1].variants[0].consumes = {1};
  const Timeline timeline = simulate(graph, {run("a"), run("b")});
  EXPECT_EQ(timeline.steps[1].during, Bytes(147));  // 100 + 10 + 30 + 7
  EXPECT_EQ(timeline.steps[1].after, Bytes(140));
  EXPECT_EQ(pointer_of_error(graph, {run("a"), run("b"), run("b")}), "/actions/2");
}

TEST(Simulate, APlanWithoutActionsHasTheInitialLevelAsItsPeak) {
  const Timeline timeline = simulate(two_op_graph(), std::vector<Action>{});
  EXPECT_EQ(timeline.peak, Bytes(110));
  EXPECT_EQ(timeline.peak_action, -1);
  EXPECT_EQ(timeline.time, Nanos(0));
}

TEST(Simulate, ThePeakActionIsTheFirstThatReachesThePeak) {
  const Timeline timeline =
      simulate(two_op_graph(), {run("a"), run("b"), release("z"), run("b"), release("y")});
  EXPECT_EQ(timeline.peak_action, 1);
}

TEST(Simulate, ActionsThatCannotRunAreNamed) {
  const Graph graph = two_op_graph();
  EXPECT_EQ(pointer_of_error(graph, {run("a"), run("c")}), "/actions/1");
  EXPECT_EQ(pointer_of_error(graph, {run("a", "slow")}), "/actions/0");
  EXPECT_EQ(pointer_of_error(graph, {release("q")}), "/actions/0");
  EXPECT_EQ(pointer_of_error(graph, {run("b")}), "/actions/0");
  EXPECT_EQ(pointer_of_error(graph, {run("a"), release("z")}), "/actions/1");
  EXPECT_EQ(pointer_of_error(graph, {run("a"), release("y"), release("y")}), "/actions/2");
  EXPECT_EQ(pointer_of_error(graph, {release("x")}), "/actions/0");  // the caller's
}

// F0 keep, F1 keep, loss, B1, B0 with all frees, followed by hand (support/example_chain.h).
TEST(Simulate, TheExampleChainInPlainTraining) {
  const Graph graph = lower(example_chain());
  const std::vector<Action> actions = with_frees(graph, plain_runs(graph));
  const std::vector<Action> expected = {run("F0", "keep"),  run("F1", "keep"), run("loss"),
                                        run("B1", "keep"),  release("x2"),     release("g2"),
                                        release("s1.keep"), run("B0", "keep"), release("x1"),
                                        release("g1"),      release("s0.keep")};
  EXPECT_EQ(actions, expected);
  const Timeline timeline = simulate(graph, actions);
  const std::vector<int64_t> after = {137, 176, 206, 228, 198, 168, 159, 165, 145, 125, 118};
  for (size_t a = 0; a < after.size(); ++a) {
    EXPECT_EQ(timeline.steps[a].after, Bytes(after[a])) << a;
  }
  EXPECT_EQ(timeline.peak, Bytes(232));  // B1: 206 + g1 20 + w1 2 + workspace 4
  EXPECT_EQ(timeline.peak_action, 3);
  EXPECT_EQ(timeline.time, Nanos(11 + 21 + 5 + 40 + 30));
  EXPECT_EQ(baseline(graph), (Baseline{Bytes(232), Nanos(107)}));
}

TEST(Simulate, ConsumingStagesNeedLessAndNoFrees) {
  Chain chain = example_chain();
  for (Stage& stage : chain.stages) stage.options[0].consumes = true;
  const Graph graph = lower(chain);
  const std::vector<Action> actions = with_frees(graph, plain_runs(graph));
  EXPECT_EQ(actions.size(), 5u);
  const Timeline timeline = simulate(graph, actions);
  EXPECT_EQ(timeline.steps[3].during, Bytes(163));  // 206 - 30 - 9 - 30 + 20 + 2 + 4
  EXPECT_EQ(timeline.steps[3].after, Bytes(159));
  EXPECT_EQ(timeline.steps[4].after, Bytes(118));
  EXPECT_EQ(timeline.peak, Bytes(206));
}

TEST(Simulate, MalformedGraphsAreRefusedBeforeAnyStep) {
  Graph graph = two_op_graph();
  graph.ops[0].variants[0].reads = {77};
  EXPECT_THROW(simulate(graph, {run("a")}), InputError);
  EXPECT_THROW(baseline(graph), InputError);
}

// Every number fits on its own; the sum of many runs does not.
TEST(Simulate, TimesThatAddUpBeyond64BitsAreAnInputError) {
  Graph graph = two_op_graph();
  graph.ops[0].variants[0].time = Nanos(INT64_MAX - 2);
  EXPECT_NO_THROW(simulate(graph, {run("a"), run("b")}));
  EXPECT_THROW(simulate(graph, {run("a"), run("b"), run("b")}), InputError);
}

TEST(Simulate, SecondCopiesThatAddUpBeyond64BitsAreAnInputError) {
  Graph graph = two_op_graph();
  graph.values[1].bytes = Bytes(INT64_MAX - 200);
  EXPECT_NO_THROW(simulate(graph, {run("a")}));
  EXPECT_THROW(simulate(graph, {run("a"), run("a")}), InputError);
}

TEST(Simulate, BindLooksUpPositions) {
  const std::vector<BoundAction> bound =
      bind(lower(example_chain()), {run("F0", "lean"), release("g2")});
  EXPECT_EQ(bound[0], (BoundAction{ActionKind::kRun, 0, 2}));
  EXPECT_EQ(bound[1], (BoundAction{ActionKind::kFree, 5, 0}));
}

}  // namespace
}  // namespace reprise::testing
