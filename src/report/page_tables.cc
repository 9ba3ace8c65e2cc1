// This file has the part of the page about each operation.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "report/decisions.h"
#include "report/html_table.h"
#include "report/markup.h"
#include "report/page.h"

namespace reprise::report {

namespace {

std::string verdict_cell(const Decision& decision) {
  const char* style = decision.verdict == Verdict::kRecomputed ? " again"
                      : decision.verdict == Verdict::kKept     ? " kept"
                                                               : "";
  std::string text = to_string(decision.verdict);
  if (decision.runs > 2) text += fmt::format(" {} times", decision.runs - 1);
  if (!decision.variant.empty() && decision.variant != "keep" && decision.variant != "fast" &&
      decision.variant != "default") {
    text += " as " + escaped(shortened(decision.variant, 24));
  }
  return fmt::format("<span class=\"verdict{}\">{}</span>", style, text);
}

// Returns the positions of the rows that a table has room for, in order.
std::vector<size_t> rows_that_matter(const std::vector<Decision>& all) {
  std::vector<size_t> rows(all.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  if (rows.size() <= kMostRows) return rows;
  double bytes = 1;
  double time = 1;
  for (const Decision& decision : all) {
    bytes += static_cast<double>(decision.plain_held.count());
    time += static_cast<double>(decision.once.count()) +
            std::abs(static_cast<double>(decision.extra.count()));
  }
  const auto weight = [&](size_t r) {
    return static_cast<double>(all[r].plain_held.count()) / bytes +
           (static_cast<double>(all[r].once.count()) +
            std::abs(static_cast<double>(all[r].extra.count()))) /
               time;
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](size_t a, size_t b) { return weight(a) > weight(b); });
  rows.resize(kMostRows);
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Returns text such as "+338 us", and nothing for no time.
std::string signed_duration(Nanos time) {
  if (time == Nanos(0)) return {};
  return time > Nanos(0) ? "+" + format_duration(time) : "-" + format_duration(Nanos(0) - time);
}

struct Sum {
  size_t ops = 0, again = 0;
  Bytes plain_held, plan_held;
  Nanos extra;

  void add(const Decision& decision) {
    ++ops;
    again += decision.runs > 1 ? 1 : 0;
    plain_held += decision.plain_held;
    plan_held += decision.plan_held;
    extra += decision.extra;
  }
};

std::string decision_table(const Facts& facts, const std::vector<Decision>& all,
                           const std::string& what) {
  const std::vector<size_t> rows = rows_that_matter(all);
  std::string caption = "All " + what + ", in the order of plain training";
  if (rows.size() < all.size()) {
    caption = fmt::format("The {} of {} {} that hold most bytes or take most time", rows.size(),
                          all.size(), what);
  }
  HtmlTable table(caption);
  table.column(facts.input.problem.chain() != nullptr ? "stage" : "operation", Align::kLeft)
      .column("decision", Align::kLeft)
      .column("plain holds", Align::kRight)
      .column("plan holds", Align::kRight)
      .column("one run", Align::kRight)
      .column("extra", Align::kRight)
      .column("why", Align::kLeft);
  Sum sum;
  for (const Decision& decision : all) sum.add(decision);
  for (const size_t r : rows) {
    const Decision& decision = all[r];
    table.row({escaped(shortened(facts.names[decision.op], 90)), verdict_cell(decision),
               format_bytes(decision.plain_held), format_bytes(decision.plan_held),
               format_duration(decision.once), signed_duration(decision.extra), decision.why});
  }
  table.total({rows.size() < all.size() ? "all, with those not shown" : "sum", "",
               format_bytes(sum.plain_held), format_bytes(sum.plan_held), "",
               signed_duration(sum.extra), ""});
  return table.take();
}

// Sums up networks with many parts alike: l0.up and l17.up are one kind.
std::string kinds_table(const Facts& facts, const std::vector<Decision>& all) {
  std::map<std::string, Sum> kinds;
  for (const Decision& decision : all) {
    kinds[without_numbers(facts.graph.ops[decision.op].id)].add(decision);
  }
  const bool tell_more = kinds.size() > 1 && kinds.size() * 2 <= all.size();
  if (facts.input.problem.chain() != nullptr || all.size() < 40 || !tell_more) return {};
  std::vector<std::pair<std::string, Sum>> sorted(kinds.begin(), kinds.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.plain_held > b.second.plain_held;
  });
  constexpr size_t kShown = 40;
  HtmlTable table(sorted.size() <= kShown
                      ? "Operations alike, numbers in their names left out"
                      : fmt::format("The {} of {} kinds of operations that hold most bytes", kShown,
                                    sorted.size()));
  table.column("kind", Align::kLeft)
      .column("operations", Align::kRight)
      .column("run again", Align::kRight)
      .column("plain holds", Align::kRight)
      .column("plan holds", Align::kRight)
      .column("extra", Align::kRight);
  for (size_t k = 0; k < std::min(kShown, sorted.size()); ++k) {
    const auto& [name, sum] = sorted[k];
    table.row({escaped(shortened(name, 90)), std::to_string(sum.ops), std::to_string(sum.again),
               format_bytes(sum.plain_held), format_bytes(sum.plan_held),
               signed_duration(sum.extra)});
  }
  return table.take();
}

}  // namespace

std::string decisions_section(const Facts& facts) {
  const std::vector<Decision> all =
      decisions(facts.graph, own_backwards(facts.input.problem, facts.graph), facts.plain_actions,
                facts.plain, facts.input.plan.actions, facts.plan, facts.input.machine);
  std::array<size_t, kVerdicts> counts = {};
  for (const Decision& decision : all) ++counts[static_cast<size_t>(decision.verdict)];
  std::string summary;
  for (size_t v = 0; v < kVerdicts; ++v) {
    if (counts[v] == 0) continue;
    summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", counts[v],
                           to_string(static_cast<Verdict>(v)));
  }
  // In a graph, ops without a decision would hide the rest.
  std::vector<Decision> shown;
  const bool chain = facts.input.problem.chain() != nullptr;
  for (const Decision& decision : all) {
    if (chain || decision.verdict != Verdict::kPassing) shown.push_back(decision);
  }
  const std::string what = chain ? "stages" : "forward operations that matter to the backward";
  std::string text = fmt::format(
      "<section>\n<h2>Kept or run again</h2>\n<p>Of {} {}: {}. <em>Holds</em> is what an operation "
      "has written and what is still there when the forward is over, for the backward to read. A "
      "part "
      "is worth running again when it frees many bytes for little time, and when its bytes stand "
      "in "
      "the way of the peak.</p>\n",
      all.size(), chain ? "stages" : "forward operations", summary.empty() ? "none run" : summary);
  text += kinds_table(facts, shown);
  text += decision_table(facts, shown, what);
  return text + "</section>\n";
}

}  // namespace reprise::report
