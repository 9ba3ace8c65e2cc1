#include "runtime/graph/placed_step.h"

#include <map>
#include <utility>

#include "runtime/graph/follow_ups.h"
#include "runtime/graph/updater.h"

namespace reprise::runtime::internal::graph {

Placement placement_of(const StepPlanOptions& options) {
  Placement placement{.optimizer = options.offload_optimizer,
                      .parameters = options.offload_parameters};
  if (!placement.optimizer && !placement.parameters) return placement;
  const std::string& to = options.offload.to;
  placement.memory = to.starts_with("disk:") ? "disk" : to;
  return placement;
}

HomedValues homed_values(const StepProgram& program, const CaptureOptions& options,
                         const Placement& placement) {
  const step::Updates& updates = program.updater->updates();
  HomedValues homed;
  if (placement.parameters) homed = homed_parameters(program.step.recording, updates, options);
  if (placement.optimizer) {
    const HomedValues states = homed_states(updates, program.movable_bytes);
    homed.insert(homed.end(), states.begin(), states.end());
  }
  return homed;
}

void PlacedStep::note_stays(const std::vector<Action>& actions) {
  const std::vector<char> stays = stays_on_device(graph, actions);
  const size_t first = graph.values.size() - homed_of_value.size();
  for (size_t v = first; v < graph.values.size(); ++v) {
    homed[homed_of_value[v - first]].stays = stays[v] != 0;
  }
}

Bytes PlacedStep::staying() const {
  Bytes sum;
  for (const HomedValue& one : homed) sum += Bytes(one.stays ? one.bytes : 0);
  return sum;
}

std::optional<size_t> PlacedStep::homed_of(ValueIndex value) const {
  const auto first = static_cast<ValueIndex>(graph.values.size() - homed_of_value.size());
  if (value < first) return std::nullopt;
  return homed_of_value[value - first];
}

PlacedStep placed(const StepProgram& program, const CaptureOptions& options, Placement placement,
                  Bytes fixed) {
  const LoweredStep& lowered = program.lowered;
  const step::Updates& updates = program.updater->updates();
  PlacedStep made{.graph = lowered.graph, .homed = homed_values(program, options, placement)};
  Graph& graph = made.graph;
  graph.fixed = fixed;
  std::map<int32_t, ValueIndex> of_external;           // as it is before its update
  std::map<int32_t, std::vector<ValueIndex>> written;  // by work: values as they are before it
  for (size_t t = 0; t < made.homed.size(); ++t) {
    const HomedValue& one = made.homed[t];
    const auto before = static_cast<ValueIndex>(graph.values.size());
    graph.values.push_back({one.name, Bytes(one.bytes), ValueKind::kInput, placement.memory});
    if (one.external >= 0) of_external[one.external] = before;
    if (one.update) {
      graph.values.push_back(
          {one.name + ".new", Bytes(one.bytes), ValueKind::kState, placement.memory});
      graph.results.push_back(before + 1);
      written[updates.each[*one.update].work].push_back(before);
      written[updates.whole].push_back(before);
    }
    made.homed_of_value.insert(made.homed_of_value.end(), one.update ? 2 : 1, t);
  }
  made.placement = std::move(placement);
  if (made.homed.empty()) return made;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (size_t v = 0; v < graph.ops[o].variants.size(); ++v) {
      Variant& variant = graph.ops[o].variants[v];
      const int32_t work = lowered.works[o][v];
      for (const int32_t e : externals_read(program.step.works.all[work])) {
        const auto found = of_external.find(e);
        if (found != of_external.end()) variant.reads.push_back(found->second);
      }
      const auto found = written.find(work);
      if (found == written.end()) continue;
      for (const ValueIndex before : found->second) {
        variant.reads.push_back(before);
        variant.writes.push_back(before + 1);
        variant.reuses.emplace_back(before + 1, before);
      }
    }
  }
  return made;
}

}  // namespace reprise::runtime::internal::graph
