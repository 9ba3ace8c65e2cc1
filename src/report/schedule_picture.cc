#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "report/markup.h"
#include "report/step_pictures.h"

namespace reprise::report {

namespace {

constexpr size_t kLanes = 3;

// The lanes are: forward with the loss, recomputing, backward.
size_t lane_of(Purpose purpose) {
  if (purpose == Purpose::kRecompute) return 1;
  return purpose == Purpose::kBackward ? 2 : 0;
}

constexpr double kLaneHeight = StepChart::kHigh / kLanes;
constexpr double kGap = 30;

std::string tip(const RunSpan& moment, const std::string& name, const Walk& walk) {
  std::string text = fmt::format("{} ({})", name, to_string(moment.purpose));
  if (walk.timed) {
    const TimelineStep& step = walk.timeline.steps[moment.action];
    text += fmt::format(", {} at {}", format_duration(step.time), format_duration(step.start));
  }
  return text + ", " + format_bytes(moment.total());
}

std::string single_runs(const StepChart& chart, const Walk& walk,
                        const std::vector<std::string>& names) {
  std::string svg;
  for (const RunSpan& moment : walk.spans) {
    const double from = chart.x_units(moment.start);
    const double width = chart.x_units(moment.end) - from;
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"run "
        "{}\"><title>{}</title></rect>\n",
        coordinate(from),
        coordinate(static_cast<double>(lane_of(moment.purpose)) * kLaneHeight + kGap),
        coordinate(width), coordinate(kLaneHeight - 2 * kGap), to_string(moment.purpose),
        escaped(tip(moment, names[moment.op], walk)));
  }
  return svg;
}

// Draws the share of each column in which a lane is busy.
std::string columns(const StepChart& chart, const Walk& walk) {
  const double width = walk.end() / static_cast<double>(kMostColumns);
  std::array<std::vector<double>, kLanes> busy;
  for (auto& lane : busy) lane.assign(kMostColumns, 0);
  for (const RunSpan& moment : walk.spans) {
    std::vector<double>& lane = busy[lane_of(moment.purpose)];
    for (auto c = static_cast<size_t>(moment.start / width); c < kMostColumns; ++c) {
      const double from = std::max(moment.start, static_cast<double>(c) * width);
      const double to = std::min(moment.end, static_cast<double>(c + 1) * width);
      if (to <= from) break;
      lane[c] += (to - from) / width;
    }
  }
  constexpr std::array<const char*, kLanes> kStyles = {"forward", "recompute", "backward"};
  std::string svg;
  for (size_t l = 0; l < kLanes; ++l) {
    const double base = static_cast<double>(l + 1) * kLaneHeight - kGap;
    std::string path = fmt::format("M0 {}", coordinate(base));
    for (size_t c = 0; c < kMostColumns; ++c) {
      path += fmt::format("V{}H{}", coordinate(base - (kLaneHeight - 2 * kGap) * busy[l][c]),
                          chart.x(static_cast<double>(c + 1) * width));
    }
    svg +=
        fmt::format("<path d=\"{}V{}Z\" class=\"run {}\"/>\n", path, coordinate(base), kStyles[l]);
  }
  return svg;
}

// Draws one line for each run. If there are very many runs, it draws one line for each cell of a
// grid that has a run.
std::array<std::string, kPurposes> trails(const StepChart& chart, const Walk& walk,
                                          const std::vector<double>& depth, double deepest) {
  constexpr size_t kRows = 120;
  const bool single = walk.spans.size() <= kMostTrails;
  std::array<std::vector<char>, kPurposes> drawn;
  for (auto& cells : drawn) cells.assign(kMostColumns * kRows, 0);
  std::array<std::string, kPurposes> paths;
  for (const RunSpan& moment : walk.spans) {
    const double level = depth[moment.op] / deepest;
    const double from = chart.x_units(moment.start);
    if (!single) {
      const auto column = static_cast<size_t>(from / StepChart::kWide * (kMostColumns - 1));
      char& cell = drawn[static_cast<size_t>(moment.purpose)]
                        [column * kRows + static_cast<size_t>(level * (kRows - 1))];
      if (cell) continue;
      cell = 1;
    }
    paths[static_cast<size_t>(moment.purpose)] +=
        fmt::format("M{} {}h{}", coordinate(from), coordinate(970 - 940 * level),
                    coordinate(chart.x_units(moment.end) - from));
  }
  return paths;
}

}  // namespace

std::string strip_picture(const Walk& walk, const std::vector<std::string>& names,
                          std::string_view title, TimeScale time) {
  constexpr double kHeight = 78;
  StepChart chart(title, "Three lanes: forward and loss, recomputing, backward.", time, kHeight);
  const bool single = walk.spans.size() <= kMostStripRuns;
  chart.draw(single ? single_runs(chart, walk, names) : columns(chart, walk));
  constexpr std::array<const char*, kLanes> kNames = {"forward", "recompute", "backward"};
  for (size_t l = 0; l < kLanes; ++l) {
    chart.margin_label((static_cast<double>(l) + 0.5) * kLaneHeight, kNames[l]);
  }
  return chart.take();
}

std::vector<double> op_depths(const Graph& graph) {
  std::vector<double> depth(graph.ops.size(), 0);
  std::vector<double> made_at(graph.values.size(), -1);  // depth of the forward op that writes it
  double last = 0;
  double forward = 0;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    if (op.phase != Phase::kBackward) {
      depth[o] = last = forward++;
      if (op.phase == Phase::kLoss) continue;  // its outputs are gradients
      for (const Variant& variant : op.variants) {
        for (const ValueIndex value : variant.writes) {
          made_at[value] = depth[o];
        }
      }
      continue;
    }
    double deepest = -1;
    for (const ValueIndex value : op.variants.front().reads) {
      deepest = std::max(deepest, made_at[value]);
    }
    // An op that reads only gradients stands beside the op before it.
    last = depth[o] = deepest < 0 ? last : deepest;
  }
  return depth;
}

std::string path_picture(const Walk& walk, const std::vector<double>& depth, TimeScale time) {
  constexpr double kHeight = 200;
  StepChart chart(
      "What runs when, and where in the network",
      "Time from left to right, the network from bottom to top: forward climbs, backward "
      "descends, recomputing climbs again.",
      time, kHeight);
  double deepest = 1;
  for (const RunSpan& moment : walk.spans) {
    deepest = std::max(deepest, depth[moment.op]);
  }
  const std::array<std::string, kPurposes> paths = trails(chart, walk, depth, deepest);
  // Recomputing is drawn on top, because there may be little of it.
  for (const Purpose purpose :
       {Purpose::kForward, Purpose::kLoss, Purpose::kBackward, Purpose::kRecompute}) {
    const std::string& path = paths[static_cast<size_t>(purpose)];
    if (path.empty()) continue;
    chart.draw(fmt::format("<path d=\"{}\" class=\"trail {}\"/>\n", path, to_string(purpose)));
  }
  chart.margin_label(970, "input");
  chart.margin_label(30, "loss");
  return chart.take();
}

}  // namespace reprise::report
