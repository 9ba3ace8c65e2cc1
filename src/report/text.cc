#include "reprise/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/moves.h"
#include "report/table.h"

namespace reprise {

namespace {

using report::Align;
using report::relative_change;
using report::share;
using report::Table;
using report::without_numbers;

std::string heading(const std::string& text, const TextOptions& options) {
  return options.color ? "\x1b[1m" + text + "\x1b[0m\n" : text + "\n";
}

std::string count_of(size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string holders_table(const Explanation& explanation, const TextOptions& options) {
  const int64_t peak = explanation.timeline.peak.count();
  Table table;
  table.column("holder", Align::kLeft)
      .column("bytes", Align::kRight)
      .column("", Align::kRight)
      .column("share", Align::kRight);
  const auto row = [&](const std::string& name, Bytes bytes) {
    table.row(
        {name, std::to_string(bytes.count()), format_bytes(bytes), share(bytes.count(), peak)});
  };
  const std::vector<Holder>& holders = explanation.holders;
  // A last row "1 other" would only take the place of the holder that it stands for.
  const size_t shown = holders.size() <= options.rows + 1 ? holders.size() : options.rows;
  Bytes sum;
  for (size_t h = 0; h < shown; ++h) {
    row(printable(holders[h].id), holders[h].bytes);
    sum += holders[h].bytes;
  }
  if (shown < holders.size()) {
    Bytes rest;
    for (size_t h = shown; h < holders.size(); ++h) rest += holders[h].bytes;
    row(fmt::format("{} others", holders.size() - shown), rest);
    sum += rest;
  }
  row("sum", sum);
  return table.text();
}

// Says how much each kind of value holds, for graphs with more holders than a table shows.
std::string kinds_of_holders(const Explanation& explanation, const TextOptions& options) {
  if (explanation.holders.size() <= options.rows + 1) return {};
  struct Kind {
    size_t values = 0;
    Bytes bytes;
  };
  std::map<std::string, Kind> kinds;
  for (const Holder& holder : explanation.holders) {
    Kind& kind = kinds[without_numbers(holder.id)];
    ++kind.values;
    kind.bytes += holder.bytes;
  }
  std::vector<std::pair<std::string, Kind>> sorted(kinds.begin(), kinds.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.bytes > b.second.bytes;
  });
  if (sorted.size() > options.rows) sorted.resize(options.rows);
  Table table;
  table.column("numbers left out", Align::kLeft)
      .column("values", Align::kRight)
      .column("", Align::kRight)
      .column("share", Align::kRight);
  for (const auto& [name, kind] : sorted) {
    table.row({printable(name), std::to_string(kind.values), format_bytes(kind.bytes),
               share(kind.bytes.count(), explanation.timeline.peak.count())});
  }
  return "\n" + table.text();
}

// Sums up re-runs by kind of operation, the kind with the most time first. `runs` counts operations,
// and the reader is that of the operation with the most time.
std::vector<Recomputed> kinds_of_recomputed(const std::vector<Recomputed>& recomputed) {
  std::map<std::string, Recomputed> kinds;
  for (const Recomputed& entry : recomputed) {
    Recomputed& kind = kinds[without_numbers(entry.op)];
    if (kind.op.empty()) kind.reader = without_numbers(entry.reader);
    kind.op = without_numbers(entry.op);
    ++kind.runs;
    kind.extra += entry.extra;
    kind.bytes += entry.bytes;
    kind.absent += entry.absent;
  }
  std::vector<Recomputed> sorted;
  for (auto& [name, kind] : kinds) sorted.push_back(std::move(kind));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Recomputed& a, const Recomputed& b) { return a.extra > b.extra; });
  return sorted;
}

// Returns the table of re-runs with their sum.
std::string recomputed_rows(const std::vector<Recomputed>& all, const char* name, const char* count,
                            const Explanation& explanation, size_t rows) {
  const int64_t plain = explanation.baseline.time.count();
  Table table;
  table.column(name, Align::kLeft)
      .column(count, Align::kRight)
      .column("extra time", Align::kRight)
      .column("of plain", Align::kRight)
      .column("made again", Align::kRight)
      .column("away at peak", Align::kRight)
      .column("read first by", Align::kLeft);
  const auto row = [&](const std::string& first, const std::string& second, const Recomputed& sum) {
    table.row({first, second, format_duration(sum.extra), share(sum.extra.count(), plain),
               format_bytes(sum.bytes), sum.absent > Bytes(0) ? format_bytes(sum.absent) : "-",
               printable(sum.reader)});
  };
  const size_t shown = all.size() <= rows + 1 ? all.size() : rows;
  Recomputed sum, rest;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < shown) row(printable(all[i].op), std::to_string(all[i].runs), all[i]);
    for (Recomputed* total : {&sum, i < shown ? nullptr : &rest}) {
      if (total == nullptr) continue;
      total->extra += all[i].extra;
      total->bytes += all[i].bytes;
      total->absent += all[i].absent;
    }
  }
  if (shown < all.size()) row(fmt::format("{} others", all.size() - shown), "", rest);
  row("sum", "", sum);
  return table.text();
}

std::string recomputed_tables(const Explanation& explanation, const TextOptions& options) {
  const std::vector<Recomputed>& all = explanation.recomputed;
  std::string text = recomputed_rows(all, "operation", "runs", explanation, options.rows);
  const std::vector<Recomputed> kinds = kinds_of_recomputed(all);
  if (kinds.size() == all.size()) return text;
  return text + "\n" +
         recomputed_rows(kinds, "numbers left out", "operations", explanation, options.rows);
}

std::string alternatives_table(const Explanation& explanation) {
  const bool has_errors = std::ranges::any_of(
      explanation.alternatives, [](const AlternativeUse& use) { return use.error_ppm > 0; });
  Table table;
  table.column("alternative", Align::kLeft)
      .column("runs", Align::kRight)
      .column("time", Align::kRight)
      .column("plain training's way", Align::kRight)
      .column("saves up to", Align::kRight);
  if (has_errors) table.column("off by at most", Align::kRight);
  for (const AlternativeUse& use : explanation.alternatives) {
    std::vector<std::string> row{printable(use.kind), std::to_string(use.runs),
                                 format_duration(use.time), format_duration(use.plain_time),
                                 use.saved > Bytes(0) ? format_bytes(use.saved) : "-"};
    if (has_errors) {
      row.push_back(use.error_ppm > 0 ? fmt::format("{:.2g} % of the largest element",
                                                    static_cast<double>(use.error_ppm) / 1e4)
                                      : "");
    }
    table.row(std::move(row));
  }
  return table.text();
}

std::string moves_text(const Explanation& explanation, const TextOptions& options) {
  if (explanation.channels.empty()) return {};
  std::string text;
  if (!explanation.devices.empty()) {
    text = "\n" + heading("What the devices do", options) + report::devices_table(explanation);
  }
  text += "\n" + heading("What the channels carry", options);
  text += report::channels_table(explanation);
  text += "\n" + heading("What is moved away and brought back", options);
  return text + (explanation.moved.empty() ? "  nothing\n"
                                           : report::moved_table(explanation, options.rows));
}

std::string_view outcome(Termination termination) {
  switch (termination) {
    case Termination::kOptimal:
      return "optimal: no plan of the class is faster within the budget";
    case Termination::kFeasible:
      return "feasible: a plan, not proven to be the fastest";
    case Termination::kInfeasible:
      return "infeasible: no plan fits the budget";
    case Termination::kTimeLimit:
      return "out of time: no plan found so far";
  }
  return "?";
}

void add_plan_rows(Table& table, const PlanResult& result) {
  const Plan& plan = *result.plan;
  const Baseline& plain = result.baseline;
  table.row({"peak", format_bytes_exact(plan.peak),
             fmt::format("{} of plain training's", share(plan.peak.count(), plain.peak.count()))});
  table.row({"time of a step", format_duration(plan.time),
             fmt::format("{} against plain training",
                         relative_change(plan.time.count(), plain.time.count()))});
  table.row(
      {"lower bound", format_duration(result.lower_bound),
       fmt::format("gap {}", relative_change(plan.time.count(), result.lower_bound.count()))});
  const auto runs = std::count_if(plan.actions.begin(), plan.actions.end(),
                                  [](const Action& a) { return a.kind == ActionKind::kRun; });
  table.row({"actions", std::to_string(plan.actions.size()), fmt::format("{} of them runs", runs)});
}

}  // namespace

std::string explanation_text(const Explanation& explanation, const TextOptions& options) {
  const Timeline& timeline = explanation.timeline;
  const Baseline& plain = explanation.baseline;
  Table summary;
  summary.column("", Align::kLeft).column("", Align::kLeft).column("", Align::kLeft);
  const std::string where = timeline.peak_action < 0
                                ? "at the start"
                                : fmt::format("in action {}, {}", timeline.peak_action,
                                              printable(explanation.peak_action));
  summary.row({"peak", format_bytes_exact(timeline.peak), where});
  if (explanation.at_loss) {
    summary.row({"at the loss", format_bytes_exact(*explanation.at_loss),
                 share(explanation.at_loss->count(), timeline.peak.count()) + " of the peak"});
  }
  summary.row(
      {"plain training", format_bytes_exact(plain.peak),
       fmt::format("the plan needs {} of it", share(timeline.peak.count(), plain.peak.count()))});
  summary.row({"time of a step", format_duration(timeline.time),
               fmt::format("{} against plain {}",
                           relative_change(timeline.time.count(), plain.time.count()),
                           format_duration(plain.time))});
  std::string text = heading("Plan", options) + summary.text();
  text += "\n";
  text += heading("Who holds bytes at the peak", options);
  text += holders_table(explanation, options) + kinds_of_holders(explanation, options);
  text += "\n";
  text += heading("What runs more than once", options);
  text += explanation.recomputed.empty() ? "  nothing\n" : recomputed_tables(explanation, options);
  text += moves_text(explanation, options);
  if (explanation.alternatives.empty()) return text;
  text += "\n" + heading("What runs in another way than plain training's", options);
  text += alternatives_table(explanation);
  return text;
}

namespace {

// Names the smallest budget of an answer. It is exact only if the planner knows its whole class.
std::string_view kind_of_smallest(const PlanResult& result) {
  constexpr std::string_view kExact = "smallest feasible budget";
  constexpr std::string_view kFound = "smallest budget with a plan found";
  if (result.termination != Termination::kInfeasible) return kFound;
  switch (result.proof) {
    case Proof::kTried:
    case Proof::kAllPlans:
      return kFound;
    case Proof::kScheduleClass:
      return kExact;
  }
  return kFound;
}

}  // namespace

std::string explain_no_plan(const PlanResult& result, std::string_view blocking_op) {
  const std::string budget =
      fmt::format("{} bytes ({})", result.budget.count(), format_bytes(result.budget));
  std::string text = result.termination == Termination::kInfeasible
                         ? fmt::format("infeasible: no plan fits {}.", budget)
                         : fmt::format(
                               "out of time: no plan within {} was found, and none was "
                               "proven impossible.",
                               budget);
  if (!result.smallest_budget) return text;
  text += fmt::format("\nThe {} is {} bytes ({}", kind_of_smallest(result),
                      result.smallest_budget->count(), format_bytes(*result.smallest_budget));
  if (result.baseline.peak > Bytes(0)) {
    text += fmt::format(", {:.1f} % of plain training's peak",
                        100.0 * static_cast<double>(result.smallest_budget->count()) /
                            static_cast<double>(result.baseline.peak.count()));
  }
  text += ")";
  if (blocking_op.empty()) blocking_op = result.blocking_op;
  if (!blocking_op.empty()) text += fmt::format(", needed by {}", blocking_op);
  return text + ".";
}

std::string plan_text(const PlanResult& result, const TextOptions& options) {
  Table table;
  table.column("", Align::kLeft).column("", Align::kLeft).column("", Align::kLeft);
  table.row({"planner", result.planner, "schedule class " + result.schedule_class});
  table.row({"budget", format_bytes_exact(result.budget),
             share(result.budget.count(), result.baseline.peak.count()) + " of plain training's"});
  if (result.plan) add_plan_rows(table, result);
  if (result.smallest_budget) {
    table.row({"smallest budget", format_bytes_exact(*result.smallest_budget),
               result.blocking_op.empty() ? "a plan was found for it"
                                          : "needed by " + printable(result.blocking_op)});
  }
  table.row({"plain training", format_bytes_exact(result.baseline.peak),
             format_duration(result.baseline.time)});
  const bool counted = result.search.memory > Bytes(0);  // Not all planners count their tables.
  table.row({"search", format_duration(result.search.wall),
             counted ? format_bytes(result.search.memory) : std::string()});
  std::string title(outcome(result.termination));
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  return heading(title, options) + table.text();
}

namespace {

// The time of a curve at a budget, over plain training's.
std::string time_at(const ComparedCurve& curve, Bytes budget, const Baseline& baseline) {
  const FrontierPoint* best = nullptr;
  for (const FrontierPoint& point : curve.points) {
    if (point.budget <= budget) best = &point;
  }
  return best == nullptr ? "no plan" : relative_change(best->time.count(), baseline.time.count());
}

}  // namespace

std::string frontier_text(const Frontier& frontier, const Baseline& baseline,
                          const TextOptions& options, std::span<const ComparedCurve> compared) {
  Table table;
  table.column("budget", Align::kRight)
      .column("bytes", Align::kRight)
      .column("of plain", Align::kRight)
      .column("time", Align::kRight)
      .column("over plain", Align::kRight)
      .column("gap", Align::kRight);
  for (const ComparedCurve& curve : compared) table.column(printable(curve.name), Align::kRight);
  const std::vector<FrontierPoint>& points = frontier.points;
  const size_t shown = std::min(points.size(), std::max<size_t>(options.rows, 2));
  for (size_t row = 0; row < shown; ++row) {
    const size_t index = shown == points.size() ? row : row * (points.size() - 1) / (shown - 1);
    const FrontierPoint& point = points[index];
    std::vector<std::string> cells{format_bytes(point.budget),
                                   std::to_string(point.budget.count()),
                                   share(point.budget.count(), baseline.peak.count()),
                                   format_duration(point.time),
                                   relative_change(point.time.count(), baseline.time.count()),
                                   relative_change(point.time.count(), point.lower_bound.count())};
    for (const ComparedCurve& curve : compared) {
      cells.push_back(time_at(curve, point.budget, baseline));
    }
    table.row(std::move(cells));
  }
  std::string text =
      heading(fmt::format("Best time of every budget: {}, planner {}",
                          printable(frontier.problem.name), printable(frontier.planner)),
              options);
  text += table.text();
  if (shown < points.size()) text += fmt::format("  ({} of {} points)\n", shown, points.size());
  text += fmt::format("  plain training: {}, {}\n", format_bytes_exact(baseline.peak),
                      format_duration(baseline.time));
  return text;
}

std::string violations_text(const std::vector<Violation>& violations, const TextOptions& options) {
  if (violations.empty()) return "no violations\n";
  std::string text = heading(count_of(violations.size(), "violation"), options);
  Table table;
  table.column("rule", Align::kLeft).column("where and what", Align::kLeft);
  for (const Violation& violation : violations) {
    table.row({to_string(violation.kind), printable(violation.message)});
  }
  return text + table.text();
}

std::string planners_text(std::span<const PlannerInfo> planners, const TextOptions& options) {
  std::string text = heading(count_of(planners.size(), "planner"), options);
  for (const PlannerInfo& planner : planners) {
    std::string problems;
    const auto add = [&](bool plans, const char* what) {
      if (plans) problems += problems.empty() ? what : fmt::format(" and {}", what);
    };
    add(planner.plan_chain != nullptr, "chains");
    add(planner.plan_graph != nullptr, "graphs");
    add(planner.plan_join != nullptr, "joins");
    add(planner.plan_pipeline != nullptr, "pipelines");
    text += fmt::format("  {:<14} {}\n", planner.name, planner.summary);
    text += fmt::format("  {:<14} plans {}{}; bound and optimum over: {}\n", "", problems,
                        planner.chain_frontier != nullptr   ? ", whole curves"
                        : planner.graph_frontier != nullptr ? ", curves"
                                                            : "",
                        planner.schedule_class);
    const std::string_view source = planner.source;
    if (!source.empty() && source != "-") text += fmt::format("  {:<14} {}\n", "", source);
  }
  return text;
}

std::string printable(std::string_view text, bool lines) {
  std::string result(text);
  for (size_t i = 0; i < result.size(); ++i) {
    const auto byte = static_cast<unsigned char>(result[i]);
    const bool control = (byte < 0x20 && !(lines && byte == '\n')) || byte == 0x7f;
    if (control) result[i] = '?';
    // U+0080 to U+009F are control characters, too; some terminals obey them.
    const bool c1 = byte == 0xC2 && i + 1 < result.size() &&
                    static_cast<unsigned char>(result[i + 1]) < 0xA0 &&
                    static_cast<unsigned char>(result[i + 1]) >= 0x80;
    if (c1) result.replace(i, 2, "?");
  }
  return result;
}

}  // namespace reprise
