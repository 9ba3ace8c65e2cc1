// This file has the parts of the page that are pictures over the step's time, and the curve.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "report/axis.h"
#include "report/frontier_picture.h"
#include "report/html_table.h"
#include "report/markup.h"
#include "report/page.h"
#include "report/step_pictures.h"

namespace reprise::report {

namespace {

constexpr const char* kZoomBar = "<div class=\"zoom\" hidden></div>\n";

std::string figure(std::string_view caption, std::string_view aside, const std::string& picture) {
  return fmt::format("<figure><figcaption>{} <span>{}</span></figcaption>\n{}</figure>\n", caption,
                     escaped(aside), picture);
}

bool budget_in_sight(const Facts& facts) {
  return facts.input.plan.budget.count() / 3 * 2 <= facts.explanation.baseline.peak.count() &&
         facts.input.plan.budget > Bytes(0);
}

MemoryScale memory_scale(const Facts& facts) {
  MemoryScale scale;
  scale.time = time_scale(facts);
  scale.budget = facts.input.plan.budget;
  scale.show_budget = budget_in_sight(facts);
  Bytes top = std::max(facts.plan.timeline.peak, facts.plain.timeline.peak);
  if (scale.show_budget) top = std::max(top, scale.budget);
  if (facts.run_log() != nullptr) {
    for (const RunLogEntry& entry : facts.run_log()->actions) {
      top = std::max(top, entry.measured_bytes);
    }
  }
  scale.top = std::max(1.0, 1.08 * static_cast<double>(top.count()));
  return scale;
}

std::string memory_legend(const Facts& facts, bool budget) {
  std::array<bool, kHoldings> used = {};
  for (const Walk* walk : {&facts.plan, &facts.plain}) {
    for (const RunSpan& moment : walk->spans) {
      for (size_t h = 0; h < kHoldings; ++h) used[h] |= moment.held[h] > Bytes(0);
    }
  }
  constexpr std::array<const char*, kHoldings> kWords = {"fixed: parameters, optimizer state",
                                                         "input of the step",
                                                         "state",
                                                         "gradients",
                                                         "activations",
                                                         "saved for the backward",
                                                         "workspace of the running operation"};
  std::string text = "<ul class=\"legend\">";
  for (size_t h = kHoldings; h-- > 0;) {
    if (!used[h]) continue;
    text += fmt::format("<li><span class=\"key kind-{}\"></span>{}</li>",
                        to_string(static_cast<Holding>(h)), kWords[h]);
  }
  if (budget) text += "<li><span class=\"key rule\"></span>budget</li>";
  if (facts.run_log() != nullptr) text += "<li><span class=\"key solid\"></span>measured</li>";
  return text + "</ul>\n";
}

std::string holders_table(const Facts& facts) {
  const Explanation& explanation = facts.explanation;
  const double peak = std::max<double>(1, static_cast<double>(explanation.timeline.peak.count()));
  HtmlTable table(fmt::format("Who holds the bytes at the peak, in {}",
                              escaped(shortened(explanation.peak_action, 120))));
  table.column("holder", Align::kLeft)
      .column("bytes", Align::kRight)
      .column("share", Align::kRight)
      .column("", Align::kLeft);
  constexpr size_t kShown = 12;
  const auto row = [&](const std::string& name, Bytes bytes) {
    const double part = 100 * static_cast<double>(bytes.count()) / peak;
    table.row({escaped(name), format_bytes(bytes), fmt::format("{:.1f} %", part),
               fmt::format("<span class=\"bar\" style=\"width:{:.0f}px\"></span>", 2.2 * part)});
  };
  const std::vector<Holder>& holders = explanation.holders;
  const size_t shown = holders.size() <= kShown + 1 ? holders.size() : kShown;
  for (size_t h = 0; h < shown; ++h) row(shortened(holders[h].id, 90), holders[h].bytes);
  Bytes rest;
  for (size_t h = shown; h < holders.size(); ++h) rest += holders[h].bytes;
  if (shown < holders.size()) row(fmt::format("{} others", holders.size() - shown), rest);
  table.total({"sum", format_bytes(explanation.timeline.peak), "", ""});
  return table.take();
}

// Returns a note on the pictures that stand for more runs than they show.
std::string thinned_note(const Facts& facts, size_t limit, const char* shown) {
  const size_t runs = std::max(facts.plan.spans.size(), facts.plain.spans.size());
  if (runs <= limit) return {};
  return fmt::format("<p class=\"note\">A step has {} runs. {}</p>\n", runs, shown);
}

}  // namespace

TimeScale time_scale(const Facts& facts) {
  const bool timed = facts.plan.timed || facts.plain.timed;
  return {std::max({facts.plan.end(), facts.plain.end(), 1.0}), timed};
}

std::string memory_section(const Facts& facts) {
  const MemoryScale scale = memory_scale(facts);
  std::string text =
      "<section>\n<h2>Memory over the step</h2>\n<p>The height shows how much the device holds "
      "while an operation runs. The colours show what the bytes are for. The dot marks the peak. "
      "Both pictures have the same axes.</p>\n";
  text += memory_legend(facts, scale.show_budget) + kZoomBar;
  text += figure("This plan",
                 fmt::format("peak {}, {}", format_bytes(facts.plan.timeline.peak),
                             format_duration(facts.plan.timeline.time)),
                 memory_picture(facts.plan, "plan", "Memory of this plan", scale, facts.run_log()));
  text += figure("Plain training",
                 fmt::format("peak {}, {}", format_bytes(facts.plain.timeline.peak),
                             format_duration(facts.plain.timeline.time)),
                 memory_picture(facts.plain, "plain", "Memory of plain training", scale, nullptr));
  text +=
      thinned_note(facts, kMostColumns,
                   "The pictures show columns of time: each is the moment of its column with the "
                   "most bytes.");
  return text + holders_table(facts) + "</section>\n";
}

std::string schedule_section(const Facts& facts) {
  const TimeScale scale = time_scale(facts);
  std::string text =
      "<section>\n<h2>What runs when</h2>\n<p>Forward climbs from the input to the loss, backward "
      "comes down again. A value that was not kept is computed again when the backward needs it. "
      "The red parts show this work.</p>\n";
  text += "<ul class=\"legend\">";
  std::array<bool, kPurposes> used = {};
  for (const RunSpan& moment : facts.plan.spans) used[static_cast<size_t>(moment.purpose)] = true;
  for (size_t p = 0; p < kPurposes; ++p) {
    if (!used[p]) continue;
    text += fmt::format("<li><span class=\"key {0}\"></span>{0}</li>",
                        to_string(static_cast<Purpose>(p)));
  }
  text += std::string("</ul>\n") + kZoomBar;
  text += figure("This plan", "place in the network over time",
                 path_picture(facts.plan, op_depths(facts.graph), scale));
  text += figure("This plan", "the same as a strip",
                 strip_picture(facts.plan, facts.names, "Schedule of this plan", scale));
  text += figure("Plain training", "",
                 strip_picture(facts.plain, facts.names, "Schedule of plain training", scale));
  text +=
      thinned_note(facts, kMostStripRuns,
                   "The strips show columns of time: the height is the share of the column that "
                   "the lane is busy.");
  return text + "</section>\n";
}

std::string frontier_section(const Facts& facts) {
  std::string text = "<section>\n<h2>Every budget</h2>\n";
  if (!facts.input.frontier || facts.input.frontier->points.empty()) {
    return text +
           "<p class=\"note\">No curve was given. <code>reprise frontier PROBLEM -o f.json</code> "
           "works it out, and <code>--frontier f.json</code> puts it here.</p>\n</section>\n";
  }
  const Plan& plan = facts.input.plan;
  text +=
      !facts.input.machine.channels.empty()
          ? "<p>The best time of a step that was found for every budget, where values may move. "
            "Further left, memory is paid for with time.</p>\n"
      : facts.input.problem.chain()
          ? "<p>The best time of a step for every budget. To the right of plain training's point "
            "nothing can be gained; further left, memory is paid for with time.</p>\n"
          : "<p>The best time of a step that was found for every budget. Further left, memory is "
            "paid for with time. Plain training stands above the curve where there are faster "
            "ways to run its operations.</p>\n";
  const Bytes at = budget_in_sight(facts) ? plan.budget : plan.peak;
  const SvgOptions options = {
      .title = "", .width = 960, .height = 420, .marks = {}, .compared = facts.input.compared};
  FrontierExtras extras;
  extras.chosen =
      FrontierPoint{at, facts.plan.timeline.peak, facts.plan.timeline.time, plan.lower_bound};
  extras.bounds = true;
  extras.own_style = false;
  const std::string picture = frontier_picture(*facts.input.frontier, facts.explanation.baseline,
                                               facts.input.periodic, options, extras);
  text += fmt::format(
      "<figure><div class=\"scroll\" tabindex=\"0\" role=\"group\" "
      "aria-label=\"Time of a step for every budget\">{}</div></figure>\n",
      picture);
  text += fmt::format("<p class=\"note\">Planner {}, {} points{}.</p>\n",
                      escaped(shortened(facts.input.frontier->planner, 60)),
                      facts.input.frontier->points.size(),
                      facts.input.periodic.empty()
                          ? ""
                          : "; circles are checkpoints at equal distances, the usual way by hand");
  return text + "</section>\n";
}

std::string arena_section(const Facts& facts) {
  const ArenaPicture picture = arena_picture(facts.graph, facts.input.plan.actions, facts.plan,
                                             facts.names, time_scale(facts), facts.input.machine);
  std::string text =
      "<section>\n<h2>Where the blocks stand</h2>\n<p>Every value and workspace of the plan has "
      "an offset in one arena, so that nothing overlaps. The bytes that are resident during the "
      "whole step stand elsewhere and are not shown.</p>\n";
  if (picture.svg.empty()) {
    return text +
           fmt::format(
               "<p class=\"note\">{} blocks are too many for this picture.</p>\n</section>\n",
               picture.blocks);
  }
  text += kZoomBar;
  const Bytes waste = picture.height - picture.live;
  text += figure("Arena",
                 fmt::format("{} high, {} blocks", format_bytes(picture.height), picture.blocks),
                 picture.svg);
  text +=
      waste == Bytes(0)
          ? "<p class=\"note\">No byte is lost: the arena is as high as the bytes that are live "
            "at once."
          : fmt::format("<p class=\"note\">{} above the bytes that are live at once.",
                        format_bytes(waste));
  if (picture.left_out > 0) {
    text += fmt::format(" {} blocks are too small or too short to be drawn.", picture.left_out);
  }
  return text +
         " Blocks are rounded up to 64 bytes. A stage's workspace counts as one block, "
         "whatever its kernels ask for inside.</p>\n</section>\n";
}

std::string hover_data(const Facts& facts) {
  std::string text = "{\"kinds\":[";
  for (size_t h = 0; h < kHoldings; ++h) {
    text += fmt::format("{}\"{}\"", h == 0 ? "" : ",", to_string(static_cast<Holding>(h)));
  }
  text += "],\"charts\":{";
  for (const Walk* walk : {&facts.plan, &facts.plain}) {
    const bool plan = walk == &facts.plan;
    std::string ends, names, held;
    for (const RunSpan& moment : thinned(*walk, kMostColumns)) {
      const char* comma = ends.empty() ? "" : ",";
      ends += fmt::format("{}{:.0f}", comma, moment.end);
      const std::string& name = facts.names[moment.op];
      names += comma + script_string(shortened(name, 80) + " (" + to_string(moment.purpose) + ")");
      held += fmt::format("{}[", comma);
      for (size_t h = 0; h < kHoldings; ++h) {
        held += fmt::format("{}{}", h == 0 ? "" : ",", moment.held[h].count());
      }
      held += "]";
    }
    text += fmt::format("{}\"{}\":{{\"end\":[{}],\"name\":[{}],\"held\":[{}]}}", plan ? "" : ",",
                        plan ? "plan" : "plain", ends, names, held);
  }
  return text + "}}";
}

}  // namespace reprise::report
