#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "io/writer.h"
#include "report/table.h"
#include "reprise/report/pipeline.h"

namespace reprise {
namespace {

using report::relative_change;
using report::share;

report::Table summary_table() {
  report::Table table;
  for (int c = 0; c < 3; ++c) table.column("", report::Align::kLeft);
  return table;
}

std::string_view pipeline_outcome(Termination termination) {
  return termination == Termination::kOptimal
             ? "optimal: no plan of the class is faster within the budgets"
             : "feasible: a plan, not proven to be the fastest";
}

std::string summary_of(const PipelinePlan& plan, const PipelineTimeline& timeline) {
  report::Table table = summary_table();
  table.row(
      {"planner", printable(plan.planner), "schedule class " + printable(plan.schedule_class)});
  table.row({"time of a step", format_duration(timeline.time),
             fmt::format("{} against the plain pipeline",
                         relative_change(timeline.time.count(), plan.baseline.time.count()))});
  table.row(
      {"lower bound", format_duration(plan.lower_bound),
       fmt::format("gap {}", relative_change(timeline.time.count(), plan.lower_bound.count()))});
  table.row({"bubble", fmt::format("{:.1f} %", 100 * bubble(plan, timeline)),
             "of the devices' time, in which they wait"});
  return table.text();
}

std::string devices_table(const PipelinePlan& plan, const PipelineTimeline& timeline,
                          const TextOptions& options) {
  report::Table table;
  table.column("device", report::Align::kLeft)
      .column("busy", report::Align::kRight)
      .column("peak", report::Align::kRight)
      .column("limit", report::Align::kRight);
  const size_t shown = plan.devices.size() <= options.rows + 1 ? plan.devices.size() : options.rows;
  constexpr Bytes kUnlimited{std::numeric_limits<int64_t>::max()};
  for (size_t d = 0; d < shown; ++d) {
    const DevicePlan& device = plan.devices[d];
    table.row({printable(device.name),
               share(timeline.devices[d].busy.count(), timeline.time.count()),
               format_bytes(timeline.devices[d].peak),
               device.budget == kUnlimited ? "-" : format_bytes(device.budget)});
  }
  if (shown < plan.devices.size()) {
    table.row({fmt::format("{} others", plan.devices.size() - shown), "", "", ""});
  }
  return table.text();
}

// Counts the forwards of a part's plan that run again in its backward.
size_t runs_again(const PartPlan& plan) {
  size_t again = 0;
  for (const PartRun& run : plan.backward) {
    if (run.phase != Phase::kForward) continue;
    again +=
        std::ranges::any_of(plan.forward, [&](const PartRun& r) { return r.stage == run.stage; });
  }
  return again;
}

std::string parts_table(const Pipeline& pipeline, const PipelinePlan& plan,
                        const PipelineTimeline& timeline, const TextOptions& options) {
  report::Table table;
  table.column("part", report::Align::kRight)
      .column("device", report::Align::kLeft)
      .column("stages", report::Align::kLeft)
      .column("in flight", report::Align::kRight)
      .column("recomputed", report::Align::kRight);
  const size_t shown = plan.parts.size() <= options.rows + 1 ? plan.parts.size() : options.rows;
  for (size_t q = 0; q < shown; ++q) {
    const PipelinePart& part = plan.parts[q];
    const auto device = static_cast<size_t>(part.device);
    const auto first = static_cast<size_t>(part.first_stage);
    const size_t last = first + static_cast<size_t>(part.stages) - 1;
    size_t again = 0;
    for (const int32_t p : part.plan_of) again += runs_again(part.plans[p]);
    const double of_each = static_cast<double>(again) / static_cast<double>(part.plan_of.size());
    table.row({std::to_string(q), printable(plan.devices[device].name),
               fmt::format("{}..{} {}", first, last, printable(pipeline.chain.stages[first].name)),
               std::to_string(timeline.devices[device].in_flight[q]),
               fmt::format("{:.1f} of {}", of_each, part.stages)});
  }
  if (shown < plan.parts.size()) {
    table.row({"", fmt::format("{} others", plan.parts.size() - shown), "", "", ""});
  }
  return table.text();
}

}  // namespace

double bubble(const PipelinePlan& plan, const PipelineTimeline& timeline) {
  std::vector<char> used(plan.devices.size(), 0);
  for (const PipelinePart& part : plan.parts) used[part.device] = 1;
  double busy = 0, whole = 0;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    if (!used[d]) continue;
    busy += static_cast<double>(timeline.devices[d].busy.count());
    whole += static_cast<double>(timeline.time.count());
  }
  return whole == 0 ? 0 : 1 - busy / whole;
}

std::string pipeline_text(const Pipeline& pipeline, const PipelinePlan& plan,
                          const PipelineTimeline& timeline, const TextOptions& options) {
  const auto titled = [&](const std::string& text) {
    return options.color ? "\x1b[1m" + text + "\x1b[0m\n" : text + "\n";
  };
  return titled(std::string(pipeline_outcome(plan.termination))) + summary_of(plan, timeline) +
         "\n" + titled("Devices") + devices_table(plan, timeline, options) + "\n" +
         titled("Parts") + parts_table(pipeline, plan, timeline, options);
}

std::string explain_no_plan(const PipelineResult& result, const Pipeline& pipeline) {
  std::string text =
      result.termination == Termination::kInfeasible
          ? "infeasible: no plan fits the devices."
          : "out of time: no plan within the budgets was found, and none was proven impossible.";
  for (size_t d = 0; d < pipeline.devices.size(); ++d) {
    if (pipeline.devices[d].name != result.blocking_device) continue;
    text += fmt::format("\n{} has {} bytes ({}", printable(result.blocking_device),
                        result.budgets[d].count(), format_bytes(result.budgets[d]));
    if (result.baseline.peak > Bytes(0)) {
      text += fmt::format(", {:.1f} % of the plain pipeline's peak",
                          100 * static_cast<double>(result.budgets[d].count()) /
                              static_cast<double>(result.baseline.peak.count()));
    }
    text += ")";
    if (result.needed) {
      text += fmt::format(", and the closest plan that {} found needs {} bytes ({}) there",
                          result.planner, result.needed->count(), format_bytes(*result.needed));
    }
    text += ".";
  }
  return text;
}

std::string pipeline_result_json(const Pipeline& pipeline, const PipelineResult& result) {
  io::Writer writer;
  writer.open_object()
      .field("termination", to_string(result.termination))
      .field("planner", result.planner)
      .field("schedule_class", result.schedule_class);
  if (result.plan) {
    const PipelineTimeline timeline = simulate(pipeline, *result.plan);
    writer.field("time_ns", result.plan->time)
        .field("lower_bound_ns", result.lower_bound)
        .field("bubble_ppm",
               static_cast<int64_t>(1'000'000 * bubble(*result.plan, timeline) + 0.5));
    writer.key("devices").open_array();
    for (size_t d = 0; d < result.plan->devices.size(); ++d) {
      writer.open_object(io::Layout::kInline)
          .field("name", result.plan->devices[d].name)
          .field("budget_bytes", result.plan->devices[d].budget)
          .field("peak_bytes", result.plan->devices[d].peak)
          .field("busy_ns", timeline.devices[d].busy)
          .close();
    }
    writer.close().key("parts").open_array();
    for (const PipelinePart& part : result.plan->parts) {
      const auto device = static_cast<size_t>(part.device);
      writer.open_object(io::Layout::kInline)
          .field("device", result.plan->devices[device].name)
          .field("first_stage", int64_t{part.first_stage})
          .field("stages", int64_t{part.stages})
          .close();
    }
    writer.close();
  }
  if (!result.blocking_device.empty()) writer.field("blocking_device", result.blocking_device);
  if (result.needed) writer.field("needed_bytes", *result.needed);
  writer.key("baseline")
      .open_object(io::Layout::kInline)
      .field("peak_bytes", result.baseline.peak)
      .field("time_ns", result.baseline.time)
      .close();
  writer.key("search")
      .open_object(io::Layout::kInline)
      .field("wall_ns", result.search.wall)
      .field("memory_bytes", result.search.memory)
      .close();
  writer.close();
  return writer.take();
}

std::string pipeline_violations_json(const std::vector<Violation>& violations,
                                     const PipelinePlan& plan) {
  io::Writer writer;
  writer.open_object().field("valid", violations.empty()).field("time_ns", plan.time);
  writer.key("violations").open_array();
  for (const Violation& violation : violations) {
    writer.open_object(io::Layout::kInline)
        .field("kind", to_string(violation.kind))
        .field("action", violation.action)
        .field("id", violation.id)
        .field("over_bytes", violation.over.count())
        .field("message", violation.message)
        .close();
  }
  writer.close().close();
  return writer.take();
}

}  // namespace reprise
