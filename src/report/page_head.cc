// This file has the first and the last part of the page: the answer, and where it comes from.
#include <fmt/format.h>

#include <algorithm>

#include "report/decisions.h"
#include "report/markup.h"
#include "report/page.h"
#include "report/table.h"

namespace reprise::report {

namespace {

std::string tile(std::string_view name, const std::string& figure, const std::string& aside) {
  return fmt::format(
      "<div><dt>{}</dt><dd class=\"figure\">{}</dd><dd class=\"aside\">{}</dd></div>\n", name,
      escaped(figure), escaped(shortened(aside, 200)));
}

// Returns text such as "40.9 % less memory" or "9.6 % more time".
std::string change(int64_t part, int64_t whole, const char* noun) {
  if (whole == 0 || part == whole) return fmt::format("the same {}", noun);
  const double percent =
      100.0 * (static_cast<double>(part) - static_cast<double>(whole)) / static_cast<double>(whole);
  return fmt::format("{:.1f} % {} {}", std::abs(percent), percent < 0 ? "less" : "more", noun);
}

std::string lead(const Facts& facts) {
  const Timeline& plan = facts.plan.timeline;
  const Baseline& plain = facts.explanation.baseline;
  const std::optional<SideBySide>& measured = facts.input.side_by_side;
  const std::string time =
      measured ? change(measured->planned.count(), measured->plain.count(), "time") + ", measured"
               : change(plan.time.count(), plain.time.count(), "time");
  return fmt::format(
      "<p class=\"lead\">This plan runs a training step in <strong>{}</strong>, where plain "
      "training "
      "needs {}: <strong>{}</strong>, {}.</p>\n",
      format_bytes(plan.peak), format_bytes(plain.peak),
      change(plan.peak.count(), plain.peak.count(), "memory"), time);
}

std::string time_tile(const Facts& facts) {
  const auto against_plain = [](Nanos time, Nanos plain) {
    return fmt::format("{} against plain training's {}",
                       relative_change(time.count(), plain.count()), format_duration(plain));
  };
  const Nanos predicted = facts.plan.timeline.time;
  const Nanos plain = facts.explanation.baseline.time;
  const std::optional<SideBySide>& measured = facts.input.side_by_side;
  if (!measured) {
    return tile("Time of a step", format_duration(predicted), against_plain(predicted, plain));
  }
  return tile(
      "Time of a step", format_duration(measured->planned),
      fmt::format("{}, measured in turn; predicted: {}, {}",
                  against_plain(measured->planned, measured->plain), format_duration(predicted),
                  relative_change(predicted.count(), plain.count())));
}

std::string proof_tile(const Plan& plan) {
  if (plan.time <= plan.lower_bound) {
    return tile(
        "Proven", "optimal",
        fmt::format("no plan within the budget is faster (schedules: {})", plan.schedule_class));
  }
  const double gap = plan.lower_bound == Nanos(0)
                         ? 100
                         : 100 * (static_cast<double>(plan.time.count()) /
                                      static_cast<double>(plan.lower_bound.count()) -
                                  1);
  return tile("Proven", fmt::format("gap ≤ {:.2g} %", gap),
              fmt::format("no plan within the budget takes less than {} (schedules: {})",
                          format_duration(plan.lower_bound), plan.schedule_class));
}

std::string budget_tile(const Facts& facts) {
  const Bytes budget = facts.input.plan.budget;
  const Bytes peak = facts.plan.timeline.peak;
  // Such a budget is as good as none: memory never comes near it.
  if (budget.count() / 4 > facts.explanation.baseline.peak.count()) {
    return tile("Budget", "no limit", "");
  }
  const std::string left = peak <= budget
                               ? fmt::format("{} of it unused", format_bytes(budget - peak))
                               : fmt::format("exceeded by {}", format_bytes(peak - budget));
  return tile("Budget", format_bytes(budget), left);
}

std::string measured_tile(const RunLog& log) {
  const int64_t over = log.measured.peak.count() - log.planned.peak.count();
  const std::string verdict =
      over == 0 ? "as planned, to the byte"
                : fmt::format("{} {} than planned", format_bytes(Bytes(std::abs(over))),
                              over > 0 ? "more" : "less");
  return tile("Measured peak", format_bytes(log.measured.peak), verdict);
}

std::string warning(const std::vector<Violation>& violations) {
  if (violations.empty()) return {};
  constexpr size_t kShown = 12;
  std::string text = fmt::format(
      "<div class=\"warning\" role=\"alert\"><strong>This plan is not valid:</strong> {} "
      "violation{}. "
      "The pictures show what its actions would do.<ul>\n",
      violations.size(), violations.size() == 1 ? "" : "s");
  for (size_t v = 0; v < std::min(kShown, violations.size()); ++v) {
    text += fmt::format("<li>{}: {}</li>\n", to_string(violations[v].kind),
                        escaped(shortened(violations[v].message, 400)));
  }
  if (violations.size() > kShown) {
    text += fmt::format("<li>and {} more; see <code>reprise check</code></li>\n",
                        violations.size() - kShown);
  }
  return text + "</ul></div>\n";
}

std::string entry(std::string_view name, const std::string& content) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escaped(shortened(content, 200)));
}

}  // namespace

std::string page_header(const Facts& facts) {
  const Plan& plan = facts.input.plan;
  const Timeline& timeline = facts.plan.timeline;
  const Baseline& plain = facts.explanation.baseline;
  const ProblemId& id = facts.input.problem.id;
  std::string text = fmt::format(
      "<header>\n<p class=\"eyebrow\">Reprise report · {}</p>\n<h1>{}</h1>\n",
      facts.input.problem.chain() != nullptr
          ? fmt::format("a chain of {} stages", facts.input.problem.chain()->stages.size())
          : fmt::format("a graph of {} operations", facts.graph.ops.size()),
      id.name.empty() ? "(no name)" : escaped(shortened(id.name, 200)));
  text += lead(facts) + warning(facts.violations);
  text += fmt::format("<dl class=\"tiles{}\">\n", facts.run_log() != nullptr ? " six" : "");
  text += tile("Peak memory", format_bytes(timeline.peak),
               share(timeline.peak.count(), plain.peak.count()) + " of plain training's");
  text += budget_tile(facts);
  text += time_tile(facts);
  text += proof_tile(plan);
  const size_t forward =
      static_cast<size_t>(std::count_if(facts.graph.ops.begin(), facts.graph.ops.end(),
                                        [](const Op& op) { return op.phase == Phase::kForward; }));
  text += tile("Run again", fmt::format("{} of {}", facts.explanation.recomputed.size(), forward),
               fmt::format("{}; their second runs take {}",
                           facts.input.problem.chain() != nullptr ? "stages" : "forward operations",
                           format_duration(facts.explanation.recomputed_time)));
  if (facts.run_log() != nullptr) text += measured_tile(*facts.run_log());
  return text + "</dl>\n</header>\n";
}

std::string page_footer(const Facts& facts) {
  const Plan& plan = facts.input.plan;
  const ProblemId& id = facts.input.problem.id;
  std::string text = "<footer>\n<h2>Where this comes from</h2>\n<dl>\n";
  text += entry("problem", fmt::format("{}, {}", id.name, id.format));
  if (!id.sha256.empty()) text += entry("its hash", id.sha256);
  text += entry("planner", plan.planner);
  text += entry("answer",
                fmt::format("{}, schedules: {}", to_string(plan.termination), plan.schedule_class));
  text += entry("budget", format_bytes_exact(plan.budget));
  text += entry("peak", format_bytes_exact(facts.plan.timeline.peak));
  text += entry("plain peak", format_bytes_exact(facts.explanation.baseline.peak));
  if (plan.search) {
    text += entry("search",
                  fmt::format("{}, {} of tables",
                              plan.search->wall > Nanos(0) ? format_duration(plan.search->wall)
                                                           : "below 1 ms",
                              format_bytes(plan.search->memory)));
  }
  text += entry("verified", facts.violations.empty()
                                ? "yes: rules, bytes and claims, by two independent accountings"
                                : "not valid");
  text += entry("made by", "reprise " REPRISE_VERSION);
  return text +
         "</dl>\n<p>Bytes are device bytes, everything included: parameters, optimizer state, "
         "batch, "
         "activations, saved tensors, scratch memory. Times are sums of measured times of the "
         "single "
         "operations, unless a part says that a run was measured.</p>\n</footer>\n";
}

}  // namespace reprise::report
