// Tests the page, the trace and the snapshot as a whole. tests/integration/report_test.py reads
// them with Python's own parsers.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/report/report.h"
#include "support/build_graph.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

ReportInput input_of(const Chain& chain, const std::string& budget = "100%") {
  const PlanResult result = plan(chain, {.budget = budget});
  return {.problem = {chain, problem_id(chain)}, .plan = result.plan.value()};
}

// Returns what a run would have logged.
RunLog log_of(const ReportInput& input) {
  const Timeline timeline = simulate(input.problem.graph(), input.plan);
  RunLog log;
  log.problem = input.plan.problem;
  log.device = "cpu";
  log.planned = log.measured = {timeline.peak, timeline.time};
  for (size_t a = 0; a < input.plan.actions.size(); ++a) {
    const Action& action = input.plan.actions[a];
    if (action.kind != ActionKind::kRun) continue;
    const TimelineStep& step = timeline.steps[a];
    log.actions.push_back({static_cast<int64_t>(a), action.id, action.variant, step.during,
                           step.during, step.time, step.time * 2});
  }
  return log;
}

TEST(ReportHtml, SaysPeakBudgetAndDecisions) {
  const ReportInput input = input_of(example_chain());
  const std::string page = report_html(input);
  for (const char* part : {"<h1>example</h1>", "Memory over the step", "What runs when",
                           "Kept or run again", "first (F0)", "Where the blocks stand"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("This plan is not valid"), std::string::npos);
}

TEST(ReportHtml, NamesAreNeverMarkup) {
  const std::string name = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";
  Chain chain = example_chain();
  chain.name = name;
  for (Stage& stage : chain.stages) {
    stage.name = name;
    for (StageOption& option : stage.options) option.name = name + option.name;
  }
  ReportInput input = input_of(chain);
  input.plan.planner = input.plan.schedule_class = name;
  input.frontier = Frontier{.problem = input.problem.id,
                            .planner = name,
                            .points = {{Bytes(1), Bytes(1), Nanos(9), Nanos(1)}},
                            .schedule_class = name};
  input.run_log = log_of(input);
  input.run_log->device = name;
  const std::string page = report_html(input);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)"), std::string::npos);
  const auto trace = nlohmann::json::parse(chrome_trace(input));
  EXPECT_NE(trace["traceEvents"][2]["name"].get<std::string>().find(name), std::string::npos);
}

TEST(ReportHtml, AnInvalidPlanSaysSoAtTheTop) {
  ReportInput input = input_of(example_chain());
  input.plan.budget = Bytes(1);
  const std::string page = report_html(input);
  EXPECT_NE(page.find("This plan is not valid"), std::string::npos);
  EXPECT_NE(page.find("over budget"), std::string::npos);
}

TEST(ReportHtml, APlanThatRunsNothingIsShown) {
  ReportInput input = input_of(example_chain());
  input.plan.actions.clear();
  EXPECT_NE(report_html(input).find("This plan is not valid"), std::string::npos);
  EXPECT_NO_THROW(nlohmann::json::parse(chrome_trace(input)));
  EXPECT_FALSE(memory_snapshot(input).empty());
}

TEST(ReportHtml, WithoutABudgetThereIsNoLine) {
  ReportInput input = input_of(example_chain());
  EXPECT_NE(report_html(input).find("class=\"level budget\""), std::string::npos);
  input.plan.budget = Budget().resolve(Bytes(0));
  EXPECT_EQ(report_html(input).find("class=\"level budget\""), std::string::npos);
}

TEST(ReportHtml, MeasuredTimesStandBeforePredictedOnes) {
  ReportInput input = input_of(example_chain());
  EXPECT_EQ(report_html(input).find("measured in turn"), std::string::npos);
  input.side_by_side = {.plain = Nanos(8'000'000), .planned = Nanos(6'000'000)};
  const std::string page = report_html(input);
  EXPECT_NE(page.find("25.0 % less time, measured"), std::string::npos);
  EXPECT_NE(
      page.find("-25.0 % against plain training&#39;s 8.00 ms, measured in turn; predicted: "),
      std::string::npos);
}

TEST(ReportHtml, NotesOfTheCallerStandBehindTheOtherPartsAndAreEscaped) {
  ReportInput input = input_of(example_chain());
  EXPECT_EQ(report_html(input).find("class=\"notes\""), std::string::npos);
  input.notes = {{.title = "<Depends>",
                  .about = "On this & that.",
                  .rows = {{"numbers", "scale < 2"}, {"long", std::string(5000, 'x')}}}};
  const std::string page = report_html(input);
  const size_t at = page.find("<h2>&lt;Depends&gt;</h2>");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(at, page.find("Where the blocks stand"));
  EXPECT_NE(page.find("On this &amp; that."), std::string::npos);
  EXPECT_NE(page.find("<th scope=\"row\">numbers</th><td>scale &lt; 2</td>"), std::string::npos);
  EXPECT_EQ(page.find(std::string(2001, 'x')), std::string::npos);
}

TEST(ReportHtml, WhatIsOfAnotherProblemOrPlanIsRefused) {
  const ReportInput good = input_of(example_chain());
  ReportInput input = good;
  input.frontier = Frontier{.problem = {"reprise.chain", "other", ""}, .planner = "", .points = {}};
  EXPECT_THROW(report_html(input), InputError);
  input = good;
  input.run_log = log_of(good);
  input.run_log->actions[0].op = "F1";
  EXPECT_THROW(report_html(input), InputError);
  EXPECT_THROW(chrome_trace(input), InputError);
  input = good;
  input.plan.actions[0].id = "F9";
  EXPECT_THROW(report_html(input), InputError);
  EXPECT_THROW(memory_snapshot(input), InputError);
}

TEST(ReportHtml, LargestNumbersAreShown) {
  Chain chain = example_chain();
  chain.fixed = Bytes(int64_t{1} << 61);
  chain.stages[0].options[0].forward.time = Nanos(int64_t{1} << 61);
  const PlanResult result = plan(chain, {.planner = "keep_all"});
  const ReportInput input = {.problem = {chain, problem_id(chain)}, .plan = result.plan.value()};
  EXPECT_NO_THROW(report_html(input));
  EXPECT_NO_THROW(nlohmann::json::parse(chrome_trace(input)));
  EXPECT_THROW(memory_snapshot(input), InputError);  // more than the viewer can count
}

// The arithmetic of the page must survive a graph larger than what its pictures show one by one.
TEST(ReportHtml, StaysSmallForManyOperations) {
  constexpr int kForward = 5000;
  Graph graph;
  graph.name = "long";
  std::vector<ValueIndex> values = {add_value(graph, "x", 64, ValueKind::kInput)};
  for (int i = 0; i < kForward; ++i) {
    values.push_back(
        add_value(graph, "block" + std::to_string(i) + ".out", 64 * (1 + i % 5)));
    add_op(
        graph, "block" + std::to_string(i),
        {make_variant(1000 + i % 77, {values[values.size() - 2]}, {values.back()})});
  }
  ValueIndex gradient = add_value(graph, "g", 64, ValueKind::kGradient);
  add_op(graph, "loss", {make_variant(5, {values.back()}, {gradient})},
                  Phase::kLoss);
  for (int i = kForward; i-- > 0;) {
    const ValueIndex next =
        add_value(graph, "g" + std::to_string(i), 64, ValueKind::kGradient);
    add_op(
        graph, "back" + std::to_string(i),
        {make_variant(2000, {gradient, values[static_cast<size_t>(i)]}, {next}, 64)},
        Phase::kBackward);
    gradient = next;
  }
  graph.results = {gradient};
  const PlanResult result = plan(graph, {.budget = "100%", .planner = "keep_all"});
  const ReportInput input = {.problem = {graph, problem_id(graph)}, .plan = result.plan.value()};
  const std::string page = report_html(input);
  EXPECT_LT(page.size(), 3'000'000u);
  EXPECT_NE(page.find("columns of time"), std::string::npos);
  EXPECT_NE(page.find("The 300 of"), std::string::npos);
}

TEST(AddCurves, FillsInWhatIsMissing) {
  ReportInput input = input_of(example_chain());
  add_curves(input, {});
  ASSERT_TRUE(input.frontier.has_value());
  EXPECT_FALSE(input.frontier->points.empty());
  EXPECT_FALSE(input.periodic.empty());
  EXPECT_NE(report_html(input).find("this plan"), std::string::npos);

  input.frontier->points.resize(1);
  add_curves(input, {});
  EXPECT_EQ(input.frontier->points.size(), 1u);
}

TEST(AddCurves, ThePlanOfAGraphIsOnItsCurve) {
  const Graph graph = lower(example_chain());
  PlanResult result = plan(graph, {.budget = "100%"});
  ReportInput input = {.problem = {graph, problem_id(graph)}, .plan = result.plan.value()};
  add_curves(input, {.time_limit = Nanos(1)});
  ASSERT_TRUE(input.frontier.has_value());
  EXPECT_TRUE(input.periodic.empty());
  const std::vector<FrontierPoint>& points = input.frontier->points;
  EXPECT_TRUE(std::ranges::any_of(points, [&](const FrontierPoint& point) {
    return point.budget <= input.plan.peak && point.time <= input.plan.time;
  }));
  for (size_t k = 1; k < points.size(); ++k) {
    EXPECT_LT(points[k - 1].budget, points[k].budget);
    EXPECT_GT(points[k - 1].time, points[k].time);
  }
  EXPECT_NE(report_html(input).find("that was found for every budget"), std::string::npos);

  input.frontier.reset();
  input.plan.time = Nanos(1);  // a false claim: such a plan is on no curve
  add_curves(input, {.time_limit = Nanos(1)});
  ASSERT_TRUE(input.frontier.has_value());
  for (const FrontierPoint& point : input.frontier->points) EXPECT_GT(point.time, Nanos(1));
}

TEST(AddCurves, AMachineHasTheCurvesOfDoingOneThingAlone) {
  const Chain chain = example_chain();
  PlanOptions options{.budget = "100%", .time_limit = Nanos(200'000'000)};
  options.machine = parse_offload("host=1GB/s");
  const PlanResult result = plan(chain, options);
  ReportInput input = {.problem = {chain, problem_id(chain)},
                       .plan = result.plan.value(),
                       .machine = options.machine};
  add_curves(input, {.time_limit = Nanos(400'000'000)});
  ASSERT_TRUE(input.frontier.has_value());
  EXPECT_EQ(input.frontier->planner, "levels");
  EXPECT_TRUE(input.periodic.empty());
  ASSERT_EQ(input.compared.size(), 2u);
  EXPECT_EQ(input.compared[0].name, "recomputing alone");
  EXPECT_EQ(input.compared[1].name, "moving alone");
  EXPECT_TRUE(std::ranges::any_of(input.frontier->points, [&](const FrontierPoint& point) {
    return point.budget <= input.plan.peak && point.time <= input.plan.time;
  }));
  const std::string page = report_html(input);
  EXPECT_NE(page.find("moving alone"), std::string::npos);
  EXPECT_NE(page.find("where values may move"), std::string::npos);
}

TEST(ChromeTrace, HasPlannedAndMeasuredTracksToTheNanosecond) {
  ReportInput input = input_of(example_chain());
  input.run_log = log_of(input);
  const auto events = nlohmann::json::parse(chrome_trace(input))["traceEvents"];
  double planned = 0;
  double measured = 0;
  int64_t peak = 0;
  for (const auto& event : events) {
    if (event["ph"] == "X") (event["pid"] == 1 ? planned : measured) += event["dur"].get<double>();
    if (event["ph"] == "C" && event["name"] == "device bytes") {
      peak = std::max(peak, event["args"]["bytes"].get<int64_t>());
    }
  }
  EXPECT_NEAR(planned * 1000, static_cast<double>(input.plan.time.count()), 1e-6);
  EXPECT_NEAR(measured * 1000, 2 * static_cast<double>(input.plan.time.count()), 1e-6);
  EXPECT_EQ(peak, input.plan.peak.count());
}

// Returns a plan that moves values, on a machine with one memory more.
ReportInput moving_input(const std::string& memory = "host") {
  const Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  PlanOptions options{.budget = "40%"};
  options.machine = parse_offload(memory + "=0.35GB/s");
  options.time_limit = Nanos(200'000'000);
  const PlanResult result = plan(chain, options);
  return {.problem = {chain, problem_id(chain)},
          .plan = result.plan.value(),
          .machine = options.machine};
}

TEST(ReportHtml, SaysWhatMoves) {
  const ReportInput input = moving_input("<b>far");
  const Timeline timeline = simulate(input.problem.graph(), input.plan, input.machine);
  ASSERT_FALSE(timeline.transfers.empty());
  const std::string page = report_html(input);
  EXPECT_EQ(page.find("This plan is not valid"), std::string::npos);
  const size_t section = page.find("<h2>What moves</h2>");
  ASSERT_NE(section, std::string::npos);
  EXPECT_NE(page.find("device -&gt; &lt;b&gt;far", section), std::string::npos);
  EXPECT_EQ(page.find("<b>far"), std::string::npos);
  size_t copies = 0;
  for (size_t at = page.find("run copy", section); at != std::string::npos; ++copies) {
    at = page.find("run copy", at + 1);
  }
  EXPECT_EQ(copies, timeline.transfers.size());
  EXPECT_EQ(report_html(input_of(example_chain())).find("What moves"), std::string::npos);
}

TEST(ChromeTrace, HasATrackForEachChannel) {
  const ReportInput input = moving_input();
  const Timeline timeline = simulate(input.problem.graph(), input.plan, input.machine);
  const auto events = nlohmann::json::parse(chrome_trace(input))["traceEvents"];
  std::vector<std::string> tracks;
  double runs = 0, copies = 0, expected = 0;
  for (const Transfer& transfer : timeline.transfers) {
    expected += static_cast<double>((transfer.end - transfer.start).count());
  }
  for (const auto& event : events) {
    if (event["name"] == "thread_name") tracks.push_back(event["args"]["name"]);
    if (event["ph"] == "X") (event["tid"] == 1 ? runs : copies) += event["dur"].get<double>();
  }
  EXPECT_EQ(tracks, (std::vector<std::string>{"schedule", "device -> host", "host -> device"}));
  EXPECT_NEAR(copies * 1000, expected, 1e-3);
  EXPECT_NEAR(runs * 1000, static_cast<double>(input.plan.time.count()), 1e-3);  // with waits
}

}  // namespace
}  // namespace reprise::testing
