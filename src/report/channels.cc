#include "report/channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "report/html_table.h"
#include "report/markup.h"
#include "report/moves.h"
#include "report/page.h"
#include "report/step_pictures.h"

namespace reprise::report {

namespace {

// A Span is a time in which a lane is busy.
struct Span {
  double start = 0, end = 0;
  std::string tip;
};

// A Lane is a device beside the first one, a channel, or the waits of the runs.
struct Lane {
  std::string name;
  const char* style;
  std::vector<Span> spans;
};

double nanos_of(Nanos time) { return static_cast<double>(time.count()); }

// The first device has pictures of its own.
std::vector<Lane> lanes_of_devices(const Facts& facts) {
  const Machine& machine = facts.input.machine;
  std::vector<Lane> lanes;
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    if (!computes(machine, static_cast<int32_t>(m))) continue;
    Lane lane{machine.memories[m].name, "forward", {}};
    for (const RunSpan& run : facts.plan.elsewhere) {
      const TimelineStep& step = facts.plan.timeline.steps[run.action];
      if (step.device != static_cast<int32_t>(m)) continue;
      lane.spans.push_back(
          {run.start, run.end,
           fmt::format("{} ({}), {} at {}", facts.names[run.op], to_string(run.purpose),
                       format_duration(step.time), format_duration(step.start))});
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

std::vector<Lane> lanes_of(const Facts& facts) {
  const Machine& machine = facts.input.machine;
  const Timeline& timeline = facts.plan.timeline;
  std::vector<Lane> lanes = lanes_of_devices(facts);
  const size_t first = lanes.size();
  for (size_t c = 0; c < machine.channels.size(); ++c) {
    lanes.push_back({channel_name(machine, c), "copy", {}});
  }
  for (const Transfer& transfer : timeline.transfers) {
    const Value& value = facts.graph.values[transfer.value];
    lanes[first + static_cast<size_t>(transfer.channel)].spans.push_back(
        {nanos_of(transfer.start), nanos_of(transfer.end),
         fmt::format("{} ({}), {} at {}", value.id, format_bytes(value.bytes),
                     format_duration(transfer.end - transfer.start),
                     format_duration(transfer.start))});
  }
  Lane waits{"runs wait", "waiting", {}};
  const std::vector<Action>& actions = facts.input.plan.actions;
  for (size_t a = 0; a < actions.size(); ++a) {
    const TimelineStep& step = timeline.steps[a];
    if (actions[a].kind != ActionKind::kWait || step.time == Nanos(0)) continue;
    waits.spans.push_back({nanos_of(step.start), nanos_of(step.start + step.time),
                           fmt::format("{} for {} at {}", format_duration(step.time), actions[a].id,
                                       format_duration(step.start))});
  }
  lanes.push_back(std::move(waits));
  return lanes;
}

// Draws each span, between two heights.
std::string single_spans(const StepChart& chart, const Lane& lane, double top, double bottom) {
  std::string svg;
  for (const Span& span : lane.spans) {
    const double from = chart.x_units(span.start);
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"run {}\"><title>{}</title>"
        "</rect>\n",
        coordinate(from), coordinate(top), coordinate(chart.x_units(span.end) - from),
        coordinate(bottom - top), lane.style, escaped(span.tip));
  }
  return svg;
}

// Draws the share of each column of time in which the lane is busy.
std::string busy_columns(const StepChart& chart, const Lane& lane, double top, double bottom,
                         double end) {
  const double width = end / static_cast<double>(kMostColumns);
  std::vector<double> busy(kMostColumns, 0);
  for (const Span& span : lane.spans) {
    for (auto c = static_cast<size_t>(span.start / width); c < kMostColumns; ++c) {
      const double from = std::max(span.start, static_cast<double>(c) * width);
      const double to = std::min(span.end, static_cast<double>(c + 1) * width);
      if (to <= from) break;
      busy[c] += (to - from) / width;
    }
  }
  std::string path = fmt::format("M0 {}", coordinate(bottom));
  for (size_t c = 0; c < kMostColumns; ++c) {
    path += fmt::format("V{}H{}", coordinate(bottom - (bottom - top) * busy[c]),
                        chart.x(static_cast<double>(c + 1) * width));
  }
  return fmt::format("<path d=\"{}V{}Z\" class=\"run {}\"/>\n", path, coordinate(bottom),
                     lane.style);
}

std::string channel_picture(const Facts& facts) {
  constexpr double kLanePixels = 26;
  const std::vector<Lane> lanes = lanes_of(facts);
  StepChart chart("What the channels carry", "A lane for each channel, and one for waits.",
                  time_scale(facts), kLanePixels * static_cast<double>(lanes.size()));
  const double high = StepChart::kHigh / static_cast<double>(lanes.size());
  for (size_t l = 0; l < lanes.size(); ++l) {
    const double top = (static_cast<double>(l) + 0.1) * high, bottom = top + 0.8 * high;
    chart.draw(lanes[l].spans.size() <= kMostStripRuns
                   ? single_spans(chart, lanes[l], top, bottom)
                   : busy_columns(chart, lanes[l], top, bottom, facts.plan.end()));
    chart.margin_label((top + bottom) / 2, shortened(lanes[l].name, 14));
  }
  return chart.take();
}

std::string page_devices(const Facts& facts) {
  if (facts.explanation.devices.empty()) return {};
  const int64_t step = facts.plan.timeline.time.count();
  HtmlTable table("Devices");
  table.column("device", Align::kLeft)
      .column("runs", Align::kRight)
      .column("busy", Align::kRight)
      .column("of the step", Align::kRight)
      .column("peak", Align::kRight);
  for (const DeviceUse& use : facts.explanation.devices) {
    table.row({escaped(shortened(use.name, 90)), std::to_string(use.runs),
               format_duration(use.busy), share(use.busy.count(), step), format_bytes(use.peak)});
  }
  return table.take();
}

std::string page_channels(const Facts& facts) {
  const int64_t step = facts.plan.timeline.time.count();
  HtmlTable table("Channels");
  table.column("channel", Align::kLeft)
      .column("copies", Align::kRight)
      .column("bytes", Align::kRight)
      .column("busy", Align::kRight)
      .column("of the step", Align::kRight)
      .column("runs wait", Align::kRight)
      .column("hidden", Align::kRight);
  for (const ChannelUse& use : facts.explanation.channels) {
    table.row({escaped(shortened(use.from + " -> " + use.to, 90)), std::to_string(use.copies),
               format_bytes(use.bytes), format_duration(use.busy), share(use.busy.count(), step),
               format_duration(use.waited), hidden_share(use)});
  }
  return table.take();
}

std::string page_moved(const Facts& facts) {
  const std::vector<Moved>& all = facts.explanation.moved;
  if (all.empty()) return "<p class=\"note\">Nothing moves in this plan.</p>\n";
  HtmlTable table("Values that move away and come back, those that runs wait for longest first");
  table.column("value", Align::kLeft)
      .column("waits in", Align::kLeft)
      .column("bytes", Align::kRight)
      .column("copies", Align::kRight)
      .column("runs wait", Align::kRight);
  const size_t shown = std::min(all.size(), kMostRows);
  for (size_t m = 0; m < shown; ++m) {
    table.row({escaped(shortened(all[m].value, 90)), escaped(shortened(all[m].memory, 60)),
               format_bytes(all[m].bytes), std::to_string(all[m].copies),
               format_duration(all[m].waited)});
  }
  Nanos waited;
  for (const Moved& moved : all) waited += moved.waited;
  table.total({fmt::format("all {} values", all.size()), "", "", "", format_duration(waited)});
  return table.take();
}

}  // namespace

std::string channel_name(const Machine& machine, size_t channel) {
  const Channel& found = machine.channels[channel];
  return machine.memories[found.from].name + " -> " + machine.memories[found.to].name;
}

std::string channels_section(const Facts& facts) {
  if (facts.input.machine.channels.empty()) return {};
  return "<section>\n<h2>What moves</h2>\n<p>A channel carries one copy after the other, while "
         "operations run. The red parts show where an operation waits until a copy is "
         "over.</p>\n" +
         channel_picture(facts) + page_devices(facts) + page_channels(facts) + page_moved(facts) +
         "</section>\n";
}

}  // namespace reprise::report
