#include <fmt/format.h>

#include <algorithm>

#include "report/measured.h"
#include "report/step_pictures.h"

namespace reprise::report {

namespace {

double count(Bytes bytes) { return static_cast<double>(bytes.count()); }

// Draws the area of each kind from the bottom up to the top of the kind, from the highest to the
// lowest. Each area covers the part below its own top, so one edge is enough.
std::string stacked_areas(const StepChart& chart, const std::vector<RunSpan>& moments) {
  std::string svg;
  for (size_t kind = kHoldings; kind-- > 0;) {
    bool any = false;
    std::string path = fmt::format("M{} {:.0f}", chart.x(moments.front().start), StepChart::kHigh);
    for (const RunSpan& moment : moments) {
      Bytes level;
      for (size_t h = 0; h <= kind; ++h) level += moment.held[h];
      any |= moment.held[kind] > Bytes(0);
      path += fmt::format("V{}H{}", chart.y(count(level)), chart.x(moment.end));
    }
    if (!any) continue;
    path += fmt::format("V{:.0f}Z", StepChart::kHigh);
    svg += fmt::format("<path d=\"{}\" class=\"kind-{}\"/>\n", path,
                       to_string(static_cast<Holding>(kind)));
  }
  return svg;
}

// Draws the upper edge. Runs that take no time show as spikes in it.
std::string outline(const StepChart& chart, const std::vector<RunSpan>& moments) {
  std::string path;
  for (const RunSpan& moment : moments) {
    path += fmt::format("{}V{}H{}", path.empty() ? "M0 1000" : "", chart.y(count(moment.total())),
                        chart.x(moment.end));
  }
  return fmt::format("<path d=\"{}\" class=\"outline\"/>\n", path);
}

std::string measured_line(const StepChart& chart, const Walk& walk, const RunLog& log) {
  std::string path;
  for (const MeasuredSpan& span : measured_spans(walk, log, kMostColumns)) {
    path += fmt::format("M{} {}H{}", chart.x(span.start), chart.y(count(span.bytes)),
                        chart.x(span.end));
  }
  return fmt::format("<path d=\"{}\" class=\"measured\"/>\n", path);
}

std::string peak_mark(const StepChart& chart, const RunSpan& peak) {
  const double middle = (peak.start + peak.end) / 2;
  return fmt::format("<path d=\"M{} {}v0\" class=\"peak\"/>\n", chart.x(middle),
                     chart.y(count(peak.total())));
}

}  // namespace

std::string memory_picture(const Walk& walk, std::string_view key, std::string_view title,
                           const MemoryScale& scale, const RunLog* measured) {
  constexpr double kHeight = 220;
  StepChart chart(title,
                  fmt::format("Peak {}. Device bytes over one step, stacked by kind.",
                              format_bytes_exact(walk.timeline.peak)),
                  scale.time, kHeight);
  chart.bytes_axis(scale.top);
  chart.hover(key);
  if (!walk.spans.empty()) {
    const std::vector<RunSpan> moments = thinned(walk, kMostColumns);
    chart.draw(stacked_areas(chart, moments));
    chart.draw(outline(chart, moments));
    if (measured != nullptr) chart.draw(measured_line(chart, walk, *measured));
    chart.draw(peak_mark(chart, walk.spans[walk.peak]));
  }
  if (scale.show_budget) {
    chart.level_line(count(scale.budget), "budget " + format_bytes(scale.budget), "budget");
  }
  return chart.take();
}

}  // namespace reprise::report
