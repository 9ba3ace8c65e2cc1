// Tests the parts that a report is made from.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "report/axis.h"
#include "report/decisions.h"
#include "report/markup.h"
#include "report/measured.h"
#include "report/pickle.h"
#include "report/step_pictures.h"
#include "report/table.h"
#include "report/walk.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/build_graph.h"
#include "support/example_chain.h"

namespace reprise::report {
namespace {

using namespace std::string_literals;
using testing::add_op;
using testing::add_value;
using testing::example_chain;
using testing::make_variant;

std::vector<Action> plain_actions(const Graph& graph) {
  return with_frees(graph, plain_runs(graph));
}

// The runs are those of example_chain(). The first stage keeps nothing, and runs again before its
// backward.
std::vector<Run> first_stage_twice() {
  const ChainIndex index = {2};
  return {{index.forward(0), 0},  {index.forward(1), 1}, {index.loss(), 0},
          {index.backward(1), 0}, {index.forward(0), 1}, {index.backward(0), 0}};
}

TEST(Escaped, LeavesNothingThatHtmlUnderstands) {
  EXPECT_EQ(escaped("<script>alert('1')</script> & \"x\""),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot;");
  EXPECT_EQ(escaped("a\x1b\nb"), "a??b");
  EXPECT_EQ(escaped("sch\xC3\xB6n"), "sch\xC3\xB6n");
  EXPECT_EQ(escaped("\xFF<"), "\xEF\xBF\xBD&lt;");
}

TEST(ScriptString, CannotEndItsScript) {
  EXPECT_EQ(script_string("</script><!--"), "\"\\u003c/script\\u003e\\u003c!--\"");
  EXPECT_EQ(script_string("\"\\\n&"), "\"\\u0022\\u005c\\u000a\\u0026\"");
  EXPECT_EQ(script_string("\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA"),
            "\"\\u2028\\u2029\xE2\x80\xAA\"");
  EXPECT_EQ(script_string("\xC3"), "\"\xEF\xBF\xBD\"");
}

TEST(ValidUtf8, ReplacesWhatIsNot) {
  const std::string kReplacement = "\xEF\xBF\xBD";
  EXPECT_EQ(valid_utf8("a\xF0\x9F\x98\x80z"), "a\xF0\x9F\x98\x80z");
  EXPECT_EQ(valid_utf8("\xC0\x80"), kReplacement + kReplacement);                     // overlong
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), kReplacement + kReplacement + kReplacement);  // surrogate
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80").substr(0, 3), kReplacement);  // beyond U+10FFFF
  EXPECT_EQ(valid_utf8("\xE2\x82"), kReplacement + kReplacement);        // cut off
}

TEST(Shortened, KeepsBothEnds) {
  EXPECT_EQ(shortened("layer", 5), "layer");
  EXPECT_EQ(shortened("abcdefghij", 5), "ab\xE2\x80\xA6ij");
  EXPECT_EQ(shortened("\xC3\xB6\xC3\xB6\xC3\xB6\xC3\xB6\xC3\xB6\xC3\xB6", 3),
            "\xC3\xB6\xE2\x80\xA6\xC3\xB6");
}

TEST(Numbers, AreGroupedAndLeftOut) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(without_numbers("l12.op3"), "l#.op#");
  EXPECT_EQ(without_numbers("12:conv2d"), "conv#d");
  EXPECT_EQ(coordinate(3.0), "3");
  EXPECT_EQ(coordinate(3.14), "3.1");
  EXPECT_EQ(coordinate(-0.01), "-0");
}

// The expected bytes are those of Python's own writer, pickle.dumps(..., 2), without what it
// memorises.
TEST(Pickle, WritesTheOpcodesOfEachKind) {
  PickleWriter writer;
  writer.open_list();
  for (const int64_t number :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65536}, int64_t{-1}, int64_t{1} << 40}) {
    writer.integer(number);
    writer.next();
  }
  writer.close_list();
  EXPECT_EQ(writer.take(),
            "\x80\x02](K\x00K\xffM\x00\x01J\x00\x00\x01\x00J\xff\xff\xff\xff"
            "\x8a\x08\x00\x00\x00\x00\x00\x01\x00\x00"
            "e."s);
}

TEST(Pickle, RefersToTextsThatWereThere) {
  PickleWriter writer;
  writer.open_dict();
  writer.field("a", "a");
  writer.close_dict();
  EXPECT_EQ(writer.take(),
            "\x80\x02}(X\x01\x00\x00\x00"
            "ar\x00\x00\x00\x00j\x00\x00\x00\x00u."s);
}

TEST(Pickle, BatchesLongLists) {
  PickleWriter writer;
  writer.open_list();
  for (int i = 0; i < 2500; ++i) {
    writer.integer(1);
    writer.next();
  }
  writer.close_list();
  const std::string text = writer.take();
  EXPECT_EQ(std::count(text.begin(), text.end(), 'e'), 3);
}

// The numbers are those of example_chain.h, worked out by hand.
TEST(WalkTest, TellsTimesPurposesAndHolders) {
  const Graph graph = lower(example_chain());
  const Walk plain = walk(graph, plain_actions(graph));
  ASSERT_EQ(plain.spans.size(), 5u);
  EXPECT_TRUE(plain.timed);
  EXPECT_EQ(plain.end(), 107);  // 11 + 21 + 5 + 40 + 30
  const RunSpan& second = plain.spans[1];
  EXPECT_EQ(second.purpose, Purpose::kForward);
  EXPECT_EQ(second.start, 11);
  EXPECT_EQ(second.end, 32);
  EXPECT_EQ(second.held[static_cast<size_t>(Holding::kFixed)], Bytes(100));
  EXPECT_EQ(second.held[static_cast<size_t>(Holding::kInput)], Bytes(10));
  EXPECT_EQ(second.held[static_cast<size_t>(Holding::kActivation)], Bytes(50));
  EXPECT_EQ(second.held[static_cast<size_t>(Holding::kSaved)], Bytes(16));
  EXPECT_EQ(plain.spans[2].purpose, Purpose::kLoss);
  EXPECT_EQ(plain.spans[3].purpose, Purpose::kBackward);
  EXPECT_EQ(plain.spans[3].held[static_cast<size_t>(Holding::kWorkspace)], Bytes(4));
  EXPECT_EQ(plain.spans[plain.peak].total(), plain.timeline.peak);
}

TEST(WalkTest, SecondRunsAreRecomputing) {
  const Graph graph = lower(example_chain());
  const Walk plan = walk(graph, with_frees(graph, first_stage_twice()));
  EXPECT_EQ(plan.spans[4].purpose, Purpose::kRecompute);
  EXPECT_EQ(plan.spans[0].purpose, Purpose::kForward);
}

TEST(WalkTest, CountsRunsWhereNothingTakesTime) {
  Graph graph;
  const ValueIndex x = add_value(graph, "x", 8, ValueKind::kInput);
  const ValueIndex y = add_value(graph, "y", 8);
  add_op(graph, "f", {make_variant(0, {x}, {y})});
  graph.results = {y};
  const Walk plain = walk(graph, plain_actions(graph));
  EXPECT_FALSE(plain.timed);
  EXPECT_EQ(plain.end(), 1);
}

TEST(ThinnedMoments, KeepThePeakAndCoverTheStep) {
  Graph graph;
  ValueIndex last = add_value(graph, "x", 1, ValueKind::kInput);
  for (int i = 0; i < 1000; ++i) {
    const ValueIndex next = add_value(graph, "y" + std::to_string(i), 10);
    add_op(graph, "f" + std::to_string(i),
           {make_variant(i % 7, {last}, {next}, i == 613 ? 500 : 0)});
    last = next;
  }
  graph.results = {last};
  const Walk plain = walk(graph, plain_actions(graph));
  for (const size_t columns : {1, 2, 10, 333, 999}) {
    const std::vector<RunSpan> thin = thinned(plain, columns);
    ASSERT_EQ(thin.size(), columns);
    EXPECT_EQ(thin.front().start, 0);
    EXPECT_EQ(thin.back().end, plain.end());
    Bytes most;
    for (size_t c = 0; c < columns; ++c) {
      most = std::max(most, thin[c].total());
      EXPECT_EQ(thin[c].start, c == 0 ? 0 : thin[c - 1].end);
    }
    EXPECT_EQ(most, plain.timeline.peak);
  }
  EXPECT_EQ(thinned(plain, 1000).size(), 1000u);
}

TEST(Depths, BackwardStandsBesideTheForwardThatItReads) {
  const Graph graph = lower(example_chain());
  const ChainIndex index = {2};
  const std::vector<double> depth = op_depths(graph);
  EXPECT_LT(depth[static_cast<size_t>(index.forward(0))],
            depth[static_cast<size_t>(index.forward(1))]);
  EXPECT_EQ(depth[static_cast<size_t>(index.backward(1))],
            depth[static_cast<size_t>(index.forward(1))]);
  EXPECT_EQ(depth[static_cast<size_t>(index.backward(0))],
            depth[static_cast<size_t>(index.forward(0))]);
}

TEST(Decisions, OfAPlanThatRunsTheFirstStageAgain) {
  const Graph graph = lower(example_chain());
  const std::vector<Action> plain = plain_actions(graph);
  const std::vector<Action> plan = with_frees(graph, first_stage_twice());
  const std::vector<Decision> all = decisions(graph, own_backwards({example_chain(), {}}, graph),
                                              plain, walk(graph, plain), plan, walk(graph, plan));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].verdict, Verdict::kRecomputed);
  EXPECT_EQ(all[0].plain_held, Bytes(27));  // x1 and what "keep" saves
  EXPECT_EQ(all[0].plan_held, Bytes(20));   // x1, for the backward of the second
  EXPECT_EQ(all[0].once, Nanos(11));
  EXPECT_EQ(all[0].extra, Nanos(10));  // fast, then keep, where plain training has keep
  EXPECT_EQ(all[0].runs, 2);
  EXPECT_EQ(all[0].variant, "keep");
  EXPECT_NE(all[0].why.find("frees 7 B"), std::string::npos) << all[0].why;
  EXPECT_EQ(all[1].verdict, Verdict::kKept);
  EXPECT_EQ(all[1].plan_held, Bytes(39));
}

TEST(Decisions, OfPlainTrainingAreToKeepEverythingOrToPassItOn) {
  Graph graph;
  const ValueIndex x = add_value(graph, "x", 8, ValueKind::kInput);
  const ValueIndex y = add_value(graph, "y", 8);
  const ValueIndex z = add_value(graph, "z", 8);
  const ValueIndex g = add_value(graph, "g", 8, ValueKind::kGradient);
  add_op(graph, "passing", {make_variant(1, {x}, {y})});
  add_op(graph, "kept", {make_variant(1, {y}, {z})});
  add_op(graph, "back", {make_variant(1, {z}, {g})}, Phase::kBackward);
  graph.results = {g};
  const std::vector<Action> plain = plain_actions(graph);
  const Walk steps = walk(graph, plain);
  const std::vector<Decision> all =
      decisions(graph, own_backwards({graph, {}}, graph), plain, steps, plain, steps);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].verdict, Verdict::kPassing);
  EXPECT_EQ(all[1].verdict, Verdict::kKept);
}

TEST(MeasuredSpans, OfLongLogsFillColumns) {
  const Graph graph = lower(example_chain());
  const std::vector<Action> actions = plain_actions(graph);
  const Walk plain = walk(graph, actions);
  RunLog log;
  for (const RunSpan& moment : plain.spans) {
    const Action& action = actions[static_cast<size_t>(moment.action)];
    log.actions.push_back({moment.action, action.id, action.variant, moment.total(),
                           Bytes(moment.action), Nanos(2), Nanos(3)});
  }
  EXPECT_EQ(measured_spans(plain, log, 5).size(), 5u);
  const std::vector<MeasuredSpan> spans = measured_spans(plain, log, 2);
  ASSERT_LE(spans.size(), 3u);
  Nanos planned, measured;
  Bytes most;
  for (const MeasuredSpan& span : spans) {
    planned += span.planned;
    measured += span.measured;
    most = std::max(most, span.bytes);
  }
  EXPECT_EQ(planned, Nanos(10));
  EXPECT_EQ(measured, Nanos(15));
  EXPECT_EQ(most, Bytes(log.actions.back().action));
  EXPECT_EQ(spans.front().start, 0);
  EXPECT_EQ(spans.back().end, plain.end());
}

}  // namespace
}  // namespace reprise::report
