// This file has the part of the page about a run: the predictions beside the measurements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "report/html_table.h"
#include "report/markup.h"
#include "report/measured.h"
#include "report/page.h"
#include "report/step_pictures.h"

namespace reprise::report {

namespace {

// The part of the plot for one doubling has this height. The picture reaches from four times less
// to four times more.
constexpr double kDoubling = StepChart::kHigh / 4;

double height_of(const MeasuredSpan& span) {
  const auto planned = std::max<double>(1, static_cast<double>(span.planned.count()));
  const auto measured = std::max<double>(1, static_cast<double>(span.measured.count()));
  return StepChart::kHigh / 2 - kDoubling * std::clamp(std::log2(measured / planned), -2.0, 2.0);
}

std::string ratio_picture(const Facts& facts, const RunLog& log) {
  StepChart chart("Measured time of each run against its planned time",
                  "Bars above the middle line took longer than planned, bars below it shorter.",
                  time_scale(facts), 150);
  std::string path;
  for (const MeasuredSpan& span : measured_spans(facts.plan, log, kMostColumns)) {
    path += fmt::format("M{} 500V{}H{}V500Z", chart.x(span.start), coordinate(height_of(span)),
                        chart.x(span.end));
  }
  const char* labels[] = {"4 x", "2 x", "planned", "1/2", "1/4"};
  for (int l = 0; l < 5; ++l) {
    const double at = kDoubling * l;
    chart.draw(fmt::format("<path d=\"M0 {}H{}\" class=\"{}\"/>", coordinate(at), StepChart::kWide,
                           l == 2 ? "axis" : "grid"));
    chart.margin_label(at, labels[l]);
  }
  chart.draw(fmt::format("<path d=\"{}\" class=\"run forward\"/>\n", path));
  return chart.take();
}

std::string signed_bytes(int64_t bytes) {
  if (bytes == 0) return "0";
  return (bytes < 0 ? "-" : "+") + format_bytes(Bytes(std::abs(bytes)));
}

std::string totals_table(const RunLog& log) {
  Nanos planned, measured;
  Bytes most_planned, most_measured;
  for (const RunLogEntry& entry : log.actions) {
    planned += entry.planned_time;
    measured += entry.measured_time;
    most_planned = std::max(most_planned, entry.planned_bytes);
    most_measured = std::max(most_measured, entry.measured_bytes);
  }
  HtmlTable table(
      fmt::format("A whole step on {}; {} measured", escaped(shortened(log.device, 60)),
                  log.steps == 1 ? "one step was" : fmt::format("{} steps were", log.steps)));
  table.column("", Align::kLeft)
      .column("planned", Align::kRight)
      .column("measured", Align::kRight)
      .column("difference", Align::kRight);
  const auto bytes = [&](const char* name, Bytes a, Bytes b) {
    table.row({name, grouped(a.count()), grouped(b.count()), signed_bytes(b.count() - a.count())});
  };
  const auto time = [&](const char* name, Nanos a, Nanos b) {
    table.row(
        {name, format_duration(a), format_duration(b), relative_change(b.count(), a.count())});
  };
  bytes("peak of the step, bytes", log.planned.peak, log.measured.peak);
  bytes("highest of the runs, bytes", most_planned, most_measured);
  time("time of the step", log.planned.time, log.measured.time);
  time("sum of the runs", planned, measured);
  return table.take();
}

std::string runs_table(const Facts& facts, const RunLog& log) {
  std::vector<size_t> rows(log.actions.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::string caption = "Every run, in order";
  if (rows.size() > kMostRows) {
    const auto off = [&](size_t r) {
      return std::abs(log.actions[r].measured_time.count() - log.actions[r].planned_time.count());
    };
    std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return off(a) > off(b); });
    rows.resize(kMostRows);
    std::sort(rows.begin(), rows.end());
    caption =
        fmt::format("The {} of {} runs whose times differ most", rows.size(), log.actions.size());
  }
  HtmlTable table(caption);
  table.column("run", Align::kLeft)
      .column("action", Align::kRight)
      .column("planned bytes", Align::kRight)
      .column("measured", Align::kRight)
      .column("difference", Align::kRight)
      .column("planned time", Align::kRight)
      .column("measured", Align::kRight)
      .column("difference", Align::kRight);
  size_t moment = 0;
  for (const size_t r : rows) {
    const RunLogEntry& entry = log.actions[r];
    while (facts.plan.spans[moment].action != entry.action) ++moment;
    const RunSpan& at = facts.plan.spans[moment];
    table.row({escaped(shortened(facts.names[at.op], 90)) + ", " + to_string(at.purpose),
               std::to_string(entry.action), format_bytes(entry.planned_bytes),
               format_bytes(entry.measured_bytes),
               signed_bytes(entry.measured_bytes.count() - entry.planned_bytes.count()),
               format_duration(entry.planned_time), format_duration(entry.measured_time),
               relative_change(entry.measured_time.count(), entry.planned_time.count())});
  }
  return table.take();
}

}  // namespace

std::string measured_section(const Facts& facts) {
  const RunLog* log = facts.run_log();
  if (log == nullptr) return {};
  const auto equal = std::count_if(
      log->actions.begin(), log->actions.end(),
      [](const RunLogEntry& entry) { return entry.planned_bytes == entry.measured_bytes; });
  std::string text = fmt::format(
      "<section>\n<h2>Planned and measured</h2>\n<p>The bytes of {} of {} runs are as planned, to "
      "the byte. Times vary from run to run, as kernels' times do.</p>\n",
      equal, log->actions.size());
  text += totals_table(*log);
  if (log->actions.empty()) return text + "</section>\n";
  text += "<div class=\"zoom\" hidden></div>\n";
  text +=
      "<figure><figcaption>Measured time of each run <span>against its planned time, at its "
      "place in the step</span></figcaption>\n" +
      ratio_picture(facts, *log) + "</figure>\n";
  return text + runs_table(facts, *log) + "</section>\n";
}

}  // namespace reprise::report
