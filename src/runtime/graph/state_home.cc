// Puts what lies in another memory between the steps into a captured step's graph, as values.
#include <algorithm>
#include <map>
#include <utility>

#include "runtime/graph/behind.h"
#include "runtime/graph/lower.h"

namespace reprise::runtime::internal::graph {

using step::Updates;
using step::Works;

namespace {

// Takes the values of all things out of the graph.
void cut(LoweredStep& lowered) {
  Graph& graph = lowered.graph;
  const size_t first = graph.values.size() - lowered.thing_of.size();
  const auto is_cut = [&](ValueIndex value) { return static_cast<size_t>(value) >= first; };
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) {
      std::erase_if(variant.reads, is_cut);
      std::erase_if(variant.writes, is_cut);
      std::erase_if(variant.reuses, [&](const auto& pair) { return is_cut(pair.first); });
    }
  }
  std::erase_if(graph.results, is_cut);
  graph.values.resize(first);
  lowered.step_value_of.resize(first);
  lowered.far.clear();
  lowered.thing_of.clear();
}

}  // namespace

std::optional<size_t> LoweredStep::far_thing_of(ValueIndex value) const {
  const size_t first = graph.values.size() - thing_of.size();
  const auto v = static_cast<size_t>(value);
  if (v < first) return std::nullopt;
  return thing_of[v - first];
}

void set_far_things(LoweredStep& lowered, FarThings things, const Works& works,
                    const Updates& updates, const std::string& memory) {
  cut(lowered);
  Graph& graph = lowered.graph;
  lowered.far = std::move(things);
  std::map<int32_t, ValueIndex> of_external;           // as it is before its update
  std::map<int32_t, std::vector<ValueIndex>> written;  // by work: values as they are before it
  for (size_t t = 0; t < lowered.far.size(); ++t) {
    const FarThing& thing = lowered.far[t];
    const auto before = static_cast<ValueIndex>(graph.values.size());
    graph.values.push_back({thing.name, Bytes(thing.bytes), ValueKind::kInput, memory});
    if (thing.external >= 0) of_external[thing.external] = before;
    if (thing.update) {
      graph.values.push_back({thing.name + ".new", Bytes(thing.bytes), ValueKind::kState, memory});
      graph.results.push_back(before + 1);
      written[updates.each[*thing.update].work].push_back(before);
      written[updates.whole].push_back(before);
    }
    const size_t values = thing.update ? 2 : 1;
    lowered.step_value_of.insert(lowered.step_value_of.end(), values, -1);
    lowered.thing_of.insert(lowered.thing_of.end(), values, t);
  }
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (size_t v = 0; v < graph.ops[o].variants.size(); ++v) {
      Variant& variant = graph.ops[o].variants[v];
      const int32_t work = lowered.works[o][v];
      for (const int32_t e : externals_read(works.all[static_cast<size_t>(work)])) {
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
}

}  // namespace reprise::runtime::internal::graph
