#include "reprise/report/json.h"

#include "io/writer.h"
#include "report/energy_json.h"

namespace reprise {

namespace {

using io::Layout;
using io::Writer;

void add_baseline(Writer& writer, const Baseline& baseline) {
  writer.key("baseline")
      .open_object(Layout::kInline)
      .field("peak_bytes", baseline.peak)
      .field("time_ns", baseline.time)
      .close();
}

// Writes what a plan moves, on a machine with channels.
void write_moves(Writer& writer, const Explanation& explanation) {
  writer.key("moved").open_array();
  for (const Moved& moved : explanation.moved) {
    writer.open_object(Layout::kInline)
        .field("value", moved.value)
        .field("memory", moved.memory)
        .field("bytes", moved.bytes)
        .field("copies", moved.copies)
        .field("waited_ns", moved.waited)
        .close();
  }
  writer.close().key("channels").open_array();
  for (const ChannelUse& use : explanation.channels) {
    writer.open_object(Layout::kInline)
        .field("from", use.from)
        .field("to", use.to)
        .field("copies", use.copies)
        .field("bytes", use.bytes)
        .field("busy_ns", use.busy)
        .field("waited_ns", use.waited)
        .close();
  }
  writer.close().key("transfers").open_array();
  for (const Transfer& transfer : explanation.timeline.transfers) {
    writer.open_object(Layout::kInline)
        .field("action", transfer.action)
        .field("channel", int64_t{transfer.channel})
        .field("issued_ns", transfer.issued)
        .field("start_ns", transfer.start)
        .field("end_ns", transfer.end)
        .close();
  }
  writer.close();
  if (explanation.devices.empty()) return;
  writer.key("devices").open_array();
  for (const DeviceUse& use : explanation.devices) {
    writer.open_object(Layout::kInline)
        .field("name", use.name)
        .field("runs", use.runs)
        .field("busy_ns", use.busy)
        .field("peak_bytes", use.peak)
        .close();
  }
  writer.close();
}

}  // namespace

std::string result_json(const PlanResult& result, const EnergyReport* energy) {
  Writer writer;
  writer.open_object()
      .field("termination", to_string(result.termination))
      .field("planner", result.planner)
      .field("schedule_class", result.schedule_class)
      .field("budget_bytes", result.budget.count());
  if (result.plan) {
    writer.field("peak_bytes", result.plan->peak)
        .field("time_ns", result.plan->time)
        .field("lower_bound_ns", result.lower_bound)
        .field("actions", static_cast<int64_t>(result.plan->actions.size()));
  }
  if (result.smallest_budget) writer.field("smallest_budget_bytes", *result.smallest_budget);
  if (!result.blocking_op.empty()) writer.field("blocking_op", result.blocking_op);
  add_baseline(writer, result.baseline);
  writer.key("search")
      .open_object(Layout::kInline)
      .field("wall_ns", result.search.wall)
      .field("memory_bytes", result.search.memory)
      .close();
  if (energy != nullptr) report::write_energy(writer, *energy);
  writer.close();
  return writer.take();
}

std::string explanation_json(const Explanation& explanation, const EnergyReport* energy) {
  const Timeline& timeline = explanation.timeline;
  Writer writer;
  writer.open_object()
      .field("peak_bytes", timeline.peak)
      .field("peak_position", timeline.peak_action)
      .field("peak_action", explanation.peak_action);
  if (explanation.at_loss) writer.field("loss_bytes", *explanation.at_loss);
  writer.field("time_ns", timeline.time);
  add_baseline(writer, explanation.baseline);
  writer.key("holders").open_array();
  for (const Holder& holder : explanation.holders) {
    writer.open_object(Layout::kInline).field("id", holder.id).field("bytes", holder.bytes).close();
  }
  writer.close().field("recomputed_ns", explanation.recomputed_time);
  writer.key("recomputed").open_array();
  for (const Recomputed& recomputed : explanation.recomputed) {
    writer.open_object(Layout::kInline)
        .field("op", recomputed.op)
        .field("runs", recomputed.runs)
        .field("extra_ns", recomputed.extra)
        .field("bytes", recomputed.bytes)
        .field("absent_bytes", recomputed.absent)
        .field("reader", recomputed.reader)
        .close();
  }
  writer.close().key("alternatives").open_array();
  for (const AlternativeUse& use : explanation.alternatives) {
    writer.open_object(Layout::kInline)
        .field("kind", use.kind)
        .field("runs", use.runs)
        .field("time_ns", use.time)
        .field("plain_time_ns", use.plain_time)
        .field("saved_bytes", use.saved);
    if (use.error_ppm > 0) writer.field("error_ppm", use.error_ppm);
    writer.close();
  }
  writer.close();
  if (!explanation.channels.empty()) write_moves(writer, explanation);
  if (energy != nullptr) report::write_energy(writer, *energy);
  writer.close();
  return writer.take();
}

std::string violations_json(const std::vector<Violation>& violations, const Plan& plan,
                            Bytes budget) {
  Writer writer;
  writer.open_object()
      .field("valid", violations.empty())
      .field("budget_bytes", budget.count())
      .field("peak_bytes", plan.peak)
      .field("time_ns", plan.time);
  writer.key("violations").open_array();
  for (const Violation& violation : violations) {
    writer.open_object(Layout::kInline)
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

std::string planners_json(std::span<const PlannerInfo> planners) {
  Writer writer;
  writer.open_array();
  for (const PlannerInfo& planner : planners) {
    writer.open_object()
        .field("name", planner.name)
        .field("summary", planner.summary)
        .field("schedule_class", planner.schedule_class)
        .field("source", planner.source)
        .field("chains", planner.plan_chain != nullptr)
        .field("graphs", planner.plan_graph != nullptr)
        .field("joins", planner.plan_join != nullptr)
        .field("pipelines", planner.plan_pipeline != nullptr)
        .field("chain_frontier", planner.chain_frontier != nullptr)
        .field("graph_frontier", planner.graph_frontier != nullptr)
        .close();
  }
  writer.close();
  return writer.take();
}

}  // namespace reprise
