// Results are shown as text, picture and JSON. Sums are right, and no text from a file can drive a
// terminal or break out of the picture.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "reprise/check/explain.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "reprise/report/json.h"
#include "reprise/report/svg.h"
#include "reprise/report/text.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

Explanation many_holders() {
  Explanation explanation;
  for (int64_t i = 0; i < 10; ++i) {
    explanation.holders.push_back({"v" + std::to_string(i), Bytes(100 - i)});
    explanation.timeline.peak += Bytes(100 - i);
  }
  explanation.baseline = {.peak = Bytes(2000), .time = Nanos(10)};
  explanation.timeline.time = Nanos(15);
  explanation.recomputed = {{"F1", 3, Nanos(4)}, {"F0", 2, Nanos(1)}};
  explanation.recomputed_time = Nanos(5);
  return explanation;
}

bool has_line(const std::string& text, const std::string& line) {
  return text.find(line + "\n") != std::string::npos;
}

TEST(ExplanationText, WhatIsLeftOutIsSummedUp) {
  const std::string text = explanation_text(many_holders(), {.rows = 3});
  EXPECT_NE(text.find("v2"), std::string::npos);
  EXPECT_EQ(text.find("v3"), std::string::npos);
  EXPECT_TRUE(has_line(text, "  7 others    658  658 B   68.9 %")) << text;
  EXPECT_TRUE(has_line(text, "  sum         955  955 B  100.0 %")) << text;
  EXPECT_NE(text.find("+50.0 %"), std::string::npos);
}

TEST(ExplanationText, WhatIsLeftOutIsShownByKind) {
  const std::string text = explanation_text(many_holders(), {.rows = 3});
  EXPECT_TRUE(has_line(text, "  v#                    10  955 B  100.0 %")) << text;
  EXPECT_EQ(explanation_text(many_holders()).find("v#"), std::string::npos);
}

TEST(ExplanationText, ColorsOnlyWhenAsked) {
  EXPECT_EQ(explanation_text(many_holders()).find('\x1b'), std::string::npos);
  EXPECT_NE(explanation_text(many_holders(), {.color = true}).find('\x1b'), std::string::npos);
}

TEST(PlanText, ShowsBothOutcomes) {
  const Chain chain = example_chain();
  const PlanResult good = plan(chain, {.budget = "100%", .planner = "keep_all"});
  const std::string text = plan_text(good);
  EXPECT_NE(text.find("keep_all"), std::string::npos);
  EXPECT_NE(text.find("100.0 % of plain"), std::string::npos) << text;

  PlanResult bad;
  bad.termination = Termination::kInfeasible;
  bad.smallest_budget = Bytes(12345);
  bad.blocking_op = "B1";
  EXPECT_NE(plan_text(bad).find("12345"), std::string::npos);
  EXPECT_NE(plan_text(bad).find("B1"), std::string::npos);
}

TEST(PlanText, TheSmallestBudgetIsCalledFeasibleWhereThatIsProven) {
  const Chain chain = example_chain();
  const PlanResult exact = plan(chain, {.budget = Bytes(1)});
  const PlanResult tried = plan(chain, {.budget = Bytes(1), .planner = "keep_all"});
  const PlanResult graph = plan(lower(chain), {.budget = Bytes(1)});
  EXPECT_EQ(exact.proof, Proof::kScheduleClass);
  EXPECT_EQ(tried.proof, Proof::kTried);
  EXPECT_EQ(graph.proof, Proof::kAllPlans);
  const auto says = [](const PlanResult& result, const std::string& words) {
    return explain_no_plan(result).find(words) != std::string::npos;
  };
  const std::string bytes = " is " + std::to_string(exact.smallest_budget->count()) + " bytes (";
  EXPECT_TRUE(says(exact, "The smallest feasible budget" + bytes)) << explain_no_plan(exact);
  EXPECT_TRUE(says(tried, "The smallest budget with a plan found is")) << explain_no_plan(tried);
  EXPECT_TRUE(says(graph, "The smallest budget with a plan found is")) << explain_no_plan(graph);
  PlanResult late = exact;
  late.termination = Termination::kTimeLimit;
  EXPECT_TRUE(says(late, "out of time: no plan within 1 bytes")) << explain_no_plan(late);
  EXPECT_TRUE(says(late, "The smallest budget with a plan found" + bytes)) << explain_no_plan(late);
}

TEST(PlanText, WithoutAPlanTheBudgetAndWhatNeedsTheSmallestOneAreNamed) {
  PlanResult result;
  result.termination = Termination::kInfeasible;
  result.budget = Bytes(2048);
  EXPECT_EQ(explain_no_plan(result), "infeasible: no plan fits 2048 bytes (2.00 KiB).");
  result.proof = Proof::kScheduleClass;
  result.smallest_budget = Bytes(3072);
  result.baseline.peak = Bytes(6144);
  result.blocking_op = "B1";
  const std::string text =
      "infeasible: no plan fits 2048 bytes (2.00 KiB).\n"
      "The smallest feasible budget is 3072 bytes (3.00 KiB, 50.0 % of plain training's peak), "
      "needed by ";
  EXPECT_EQ(explain_no_plan(result), text + "B1.");
  EXPECT_EQ(explain_no_plan(result, "the last layer"), text + "the last layer.");
}

TEST(FrontierText, LongCurvesKeepBothEnds) {
  Frontier frontier;
  for (int64_t i = 0; i < 1000; ++i) {
    frontier.points.push_back({Bytes(100'000 + i), Bytes(100'000 + i), Nanos(5000 - i), Nanos(1)});
  }
  const std::string text = frontier_text(frontier, {Bytes(200'000), Nanos(4001)}, {.rows = 10});
  EXPECT_NE(text.find("100000 "), std::string::npos);
  EXPECT_NE(text.find("100999 "), std::string::npos);
  EXPECT_NE(text.find("10 of 1000 points"), std::string::npos);
}

TEST(FrontierText, ComparedCurvesAreReadAtTheBudgetOfTheRow) {
  const Frontier frontier{.problem = {},
                          .planner = "levels",
                          .points = {{Bytes(10), Bytes(10), Nanos(110), Nanos(100)},
                                     {Bytes(20), Bytes(20), Nanos(100), Nanos(100)}}};
  const std::vector<ComparedCurve> alone{
      {"recomputing alone", {{Bytes(15), Bytes(15), Nanos(150), Nanos(100)}}}};
  const std::string text = frontier_text(frontier, {Bytes(20), Nanos(100)}, {}, alone);
  EXPECT_NE(text.find("recomputing alone"), std::string::npos);
  EXPECT_NE(text.find("no plan"), std::string::npos);  // at 10 bytes
  EXPECT_NE(text.find("+50.0 %"), std::string::npos);  // at 20 bytes
}

TEST(ViolationsText, ListsAllOfThem) {
  std::vector<Violation> violations;
  for (int i = 0; i < 100; ++i) {
    violations.push_back({ViolationKind::kNotLive, i, "x", Bytes(0), "fault " + std::to_string(i)});
  }
  const std::string text = violations_text(violations, {.rows = 3});
  EXPECT_NE(text.find("100 violations"), std::string::npos);
  EXPECT_NE(text.find("fault 99"), std::string::npos);
}

TEST(PlannersText, NamesEveryPlanner) {
  const std::string text = planners_text(planners());
  for (const PlannerInfo& planner : planners()) {
    EXPECT_NE(text.find(planner.name), std::string::npos);
  }
}

TEST(Printable, ReplacesControlCharactersOnly) {
  EXPECT_EQ(printable("a\x1b[31mb\n\x7f"), "a?[31mb??");
  EXPECT_EQ(printable("a\nb\x07", true), "a\nb?");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "?31m");  // one byte of CSI
  EXPECT_EQ(printable("sch\xC3\xB6n \xE2\x9C\x93"), "sch\xC3\xB6n \xE2\x9C\x93");
}

TEST(FrontierSvg, EscapesNames) {
  Frontier frontier{.problem = {"reprise.chain", "</text><script>alert(1)</script>&\"", ""},
                    .planner = "<b>",
                    .points = {{Bytes(10), Bytes(10), Nanos(20), Nanos(20)},
                               {Bytes(20), Bytes(20), Nanos(10), Nanos(10)}}};
  const std::vector<FrontierPoint> periodic = {{Bytes(15), Bytes(15), Nanos(25), Nanos(0)}};
  const std::string svg = frontier_svg(frontier, {Bytes(20), Nanos(10)}, periodic);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("periodic checkpoints"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(FrontierSvg, DrawsComparedCurvesAsFarAsTheyAreInThePicture) {
  const Frontier frontier{.problem = {"reprise.chain", "compared", ""},
                          .planner = "levels",
                          .points = {{Bytes(10), Bytes(10), Nanos(110), Nanos(100)},
                                     {Bytes(20), Bytes(20), Nanos(100), Nanos(100)}}};
  const auto paths = [&](const std::vector<FrontierPoint>& points) {
    SvgOptions options;
    options.compared = {{"recomputing <alone>", points}};
    return frontier_svg(frontier, {Bytes(20), Nanos(100)}, {}, options);
  };
  const std::string near = paths({{Bytes(12), Bytes(12), Nanos(130), Nanos(0)}});
  EXPECT_NE(near.find("recomputing &lt;alone&gt;"), std::string::npos);
  const auto count = [](const std::string& svg) {
    size_t found = 0;
    for (size_t at = 0; (at = svg.find("class=\"compared0\"", at)) != std::string::npos; ++at)
      ++found;
    return found;
  };
  EXPECT_EQ(count(near), 2u);  // the curve and its place in the legend
  // Times far above the curve would squeeze it: such a curve is only named.
  const std::string far = paths({{Bytes(12), Bytes(12), Nanos(13'000), Nanos(0)}});
  EXPECT_EQ(count(far), 1u);
  EXPECT_EQ(far.find("nan"), std::string::npos);
}

TEST(FrontierSvg, MarksBudgetsWithAndWithoutAPlan) {
  const Frontier frontier{.problem = {"reprise.chain", "marked", ""},
                          .planner = "p",
                          .points = {{Bytes(10), Bytes(10), Nanos(20), Nanos(20)},
                                     {Bytes(20), Bytes(20), Nanos(10), Nanos(10)}}};
  const SvgOptions options{.title = "", .marks = {Bytes(5), Bytes(15), Bytes(4096)}};
  const std::string svg = frontier_svg(frontier, {Bytes(20), Nanos(10)}, {}, options);
  for (const char* label : {">5 B<", ">15 B<", ">4.00 KiB<"}) {
    EXPECT_NE(svg.find(label), std::string::npos) << label;
  }
}

TEST(Thinned, KeepsBothEndsAndTheNumberOfPoints) {
  Frontier curve{.problem = {}, .planner = "p", .points = {}};
  for (int64_t k = 0; k < 50; ++k) {
    curve.points.push_back({Bytes(k), Bytes(k), Nanos(1000 - k * k / 3), Nanos(0)});
  }
  for (const size_t points : {2, 3, 7, 49, 50, 80}) {
    const Frontier thin = thinned(curve, points);
    ASSERT_EQ(thin.points.size(), std::min<size_t>(points, 50));
    EXPECT_EQ(thin.points.front(), curve.points.front());
    EXPECT_EQ(thin.points.back(), curve.points.back());
    for (size_t k = 1; k < thin.points.size(); ++k) {
      EXPECT_LT(thin.points[k - 1].budget, thin.points[k].budget);
    }
  }
}

TEST(FrontierSvg, DegenerateCurvesAreDrawn) {
  const Frontier zero{.problem = {}, .planner = "p", .points = {{}}};
  for (const Baseline& baseline : {Baseline{}, Baseline{Bytes(1), Nanos(1)}}) {
    const std::string svg = frontier_svg(zero, baseline);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
  EXPECT_THROW(frontier_svg(Frontier{}, Baseline{}), InputError);
}

TEST(ResultJson, Parses) {
  const Chain chain = example_chain();
  const PlanResult result = plan(chain, {.budget = "100%", .planner = "keep_all"});
  EXPECT_EQ(nlohmann::json::parse(result_json(result))["planner"], "keep_all");
  const auto explained = nlohmann::json::parse(explanation_json(many_holders()));
  EXPECT_EQ(explained["holders"].size(), 10u);
  EXPECT_EQ(explained["recomputed_ns"], 5);
  const std::vector<Violation> violations = {
      {ViolationKind::kOverBudget, 3, "op \"q\"", Bytes(7), "seven over"}};
  const auto verdict = nlohmann::json::parse(violations_json(violations, Plan{}, Bytes(5)));
  EXPECT_FALSE(verdict["valid"]);
  EXPECT_EQ(verdict["violations"][0]["over_bytes"], 7);
  EXPECT_EQ(nlohmann::json::parse(planners_json(planners())).size(), planners().size());
}

}  // namespace
}  // namespace reprise::testing
