#include "report/measured.h"

#include <algorithm>

namespace reprise::report {

std::vector<MeasuredSpan> measured_spans(const Walk& walk, const RunLog& log, size_t columns) {
  const double width =
      log.actions.size() <= columns ? 0 : walk.end() / static_cast<double>(columns);
  std::vector<MeasuredSpan> spans;
  for (const RunLogEntry& entry : log.actions) {
    const auto action = static_cast<size_t>(entry.action);
    const bool begins = spans.empty() || walk.clock[action + 1] - spans.back().start >= width;
    if (begins) spans.push_back({walk.clock[action], 0, {}, {}, {}});
    MeasuredSpan& span = spans.back();
    span.end = walk.clock[action + 1];
    span.bytes = std::max(span.bytes, entry.measured_bytes);
    span.planned += entry.planned_time;
    span.measured += entry.measured_time;
  }
  return spans;
}

}  // namespace reprise::report
