#include "runtime/graph/placed_step.h"

#include <map>
#include <utility>

#include "runtime/graph/behind.h"
#include "runtime/graph/updater.h"

namespace reprise::runtime::internal::graph {

Placement placement_of(const StepPlanOptions& options, KeptThings kept) {
  Placement placement{.optimizer = options.offload_optimizer,
                      .parameters = options.offload_parameters,
                      .kept = std::move(kept)};
  if (!placement.optimizer && !placement.parameters) return placement;
  const std::string& to = options.offload.to;
  placement.memory = to.starts_with("disk:") ? "disk" : to;
  return placement;
}

FarThings far_things(const StepProgram& program, const CaptureOptions& options,
                     const Placement& placement) {
  const step::Updates& updates = program.updater->updates();
  FarThings things;
  if (placement.parameters) things = far_parameters(program.step.recording, updates, options);
  if (placement.optimizer) {
    const FarThings states = far_states(updates, program.far_bytes);
    things.insert(things.end(), states.begin(), states.end());
  }
  std::erase_if(things, [&](const FarThing& thing) { return placement.kept.contains(thing.name); });
  return things;
}

std::optional<size_t> PlacedStep::thing_of(ValueIndex value) const {
  const auto first = static_cast<ValueIndex>(graph.values.size() - thing_of_value.size());
  if (value < first) return std::nullopt;
  return thing_of_value[value - first];
}

PlacedStep placed(const StepProgram& program, const CaptureOptions& options, Placement placement,
                  Bytes fixed) {
  const LoweredStep& lowered = program.lowered;
  const step::Updates& updates = program.updater->updates();
  PlacedStep made{.graph = lowered.graph, .things = far_things(program, options, placement)};
  Graph& graph = made.graph;
  graph.fixed = fixed;
  std::map<int32_t, ValueIndex> of_external;           // as it is before its update
  std::map<int32_t, std::vector<ValueIndex>> written;  // by work: values as they are before it
  for (size_t t = 0; t < made.things.size(); ++t) {
    const FarThing& thing = made.things[t];
    const auto before = static_cast<ValueIndex>(graph.values.size());
    graph.values.push_back({thing.name, Bytes(thing.bytes), ValueKind::kInput, placement.memory});
    if (thing.external >= 0) of_external[thing.external] = before;
    if (thing.update) {
      graph.values.push_back(
          {thing.name + ".new", Bytes(thing.bytes), ValueKind::kState, placement.memory});
      graph.results.push_back(before + 1);
      written[updates.each[*thing.update].work].push_back(before);
      written[updates.whole].push_back(before);
    }
    made.thing_of_value.insert(made.thing_of_value.end(), thing.update ? 2 : 1, t);
  }
  made.placement = std::move(placement);
  if (made.things.empty()) return made;
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
