// Puts the optimizer's state into a captured step's graph, as values.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/graph/lower.h"

namespace reprise::runtime::internal::graph {

using step::Updates;

namespace {

// Takes the values from this one on out of the graph.
void cut(LoweredStep& lowered, size_t first) {
  const auto is_cut = [&](ValueIndex value) { return static_cast<size_t>(value) >= first; };
  Graph& graph = lowered.graph;
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
  lowered.far_parameters.clear();
}

}  // namespace

std::optional<LoweredStep::StateValue> LoweredStep::state_of(ValueIndex value) const {
  const size_t first = graph.values.size() - 2 * far_parameters.size();
  const auto v = static_cast<size_t>(value);
  if (v < first) return std::nullopt;
  return StateValue{far_parameters[(v - first) / 2], (v - first) % 2 == 1};
}

void set_state_home(LoweredStep& lowered, const Updates& updates, const std::vector<int64_t>& bytes,
                    const std::string& memory) {
  Graph& graph = lowered.graph;
  if (!lowered.far_parameters.empty()) {
    cut(lowered, graph.values.size() - 2 * lowered.far_parameters.size());
  }
  if (memory.empty()) return;
  for (size_t k = 0; k < updates.each.size(); ++k) {
    if (bytes[k] == 0) continue;
    const auto before = static_cast<ValueIndex>(graph.values.size());
    const ValueIndex after = before + 1;
    const std::string id = "state." + updates.each[k].name;
    graph.values.push_back({id, Bytes(bytes[k]), ValueKind::kInput, memory});
    graph.values.push_back({id + ".new", Bytes(bytes[k]), ValueKind::kState, memory});
    graph.results.push_back(after);
    lowered.step_value_of.insert(lowered.step_value_of.end(), 2, -1);
    lowered.far_parameters.push_back(updates.each[k].parameter);
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      for (size_t v = 0; v < graph.ops[o].variants.size(); ++v) {
        const int32_t work = lowered.works[o][v];
        if (work != updates.each[k].work && work != updates.whole) continue;
        Variant& variant = graph.ops[o].variants[v];
        variant.reads.push_back(before);
        variant.writes.push_back(after);
        variant.reuses.emplace_back(after, before);
      }
    }
  }
}

}  // namespace reprise::runtime::internal::graph
