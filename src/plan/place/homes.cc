#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "model/contains.h"
#include "plan/place/homes.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise::internal::place {

using model::contains;

namespace {

// Needs are the bytes that a run needs of values that live elsewhere, and of others.
struct Needs {
  Bytes read_homed, made_homed;
  Bytes given_back, made;
};

Needs needs_of(const Graph& graph, const Variant& variant) {
  Needs needs;
  const auto value = [&](ValueIndex v) -> const Value& { return graph.values[v]; };
  const auto has_home = [&](ValueIndex v) { return !value(v).home.empty(); };
  const auto takes_over = [&](ValueIndex v) {
    return std::any_of(variant.reuses.begin(), variant.reuses.end(),
                       [&](const auto& pair) { return pair.first == v; });
  };
  for (const ValueIndex v : variant.reads) {
    if (has_home(v)) needs.read_homed += value(v).bytes;
  }
  for (const ValueIndex v : variant.writes) {
    if (!has_home(v)) {
      needs.made += value(v).bytes;
    } else if (!takes_over(v)) {
      needs.made_homed += value(v).bytes;
    }
  }
  for (const ValueIndex v : variant.consumes) {
    if (!has_home(v)) needs.given_back += value(v).bytes;
  }
  for (const auto& [written, read] : variant.reuses) {
    if (!has_home(read)) needs.given_back += value(read).bytes;
  }
  return needs;
}

}  // namespace

HomeGroups::HomeGroups(const Graph& graph, const Machine& machine,
                       const std::vector<int32_t>& lanes)
    : graph_(graph), lane_(graph.values.size(), 0), group_(graph.values.size(), -1) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.home.empty()) continue;
    const auto lane = std::ranges::find(lanes, find_memory(machine, value.home));
    if (lane == lanes.end()) {
      throw InputError(fmt::format("\"{}\" lives in {}, and the machine has no channel each way "
                                   "between there and the device",
                                   value.id, value.home),
                       {.pointer = fmt::format("/values/{}/home", v)});
    }
    lane_[v] = static_cast<int8_t>(lane - lanes.begin());
    group_[v] = static_cast<int32_t>(v);
  }
  // A group has the number of its first value, and then one by the order of these.
  const auto join = [&](ValueIndex a, ValueIndex b) {
    const auto [first, second] = std::minmax(group_[a], group_[b]);
    if (first != second) std::ranges::replace(group_, int32_t{second}, int32_t{first});
  };
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) {
      for (const auto& [written, read] : variant.reuses) {
        if (has(written)) join(written, read);
      }
    }
  }
  for (size_t v = 0; v < group_.size(); ++v) {
    if (group_[v] < 0) continue;
    const bool is_first = group_[v] == static_cast<int32_t>(v);
    group_[v] = is_first ? static_cast<int32_t>(may_stay_.size()) : group_[group_[v]];
    if (is_first) may_stay_.push_back(1);
  }
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) {
      for (const ValueIndex value : variant.consumes) {
        if (has(value)) may_stay_[group_[value]] = 0;
      }
    }
  }
}

bool HomeGroups::takes(const Run& run, ValueIndex value) const {
  const Variant& variant = graph_.ops[run.op].variants[run.variant];
  return contains(variant.consumes, value) ||
         std::ranges::any_of(variant.reuses,
                             [&](const auto& pair) { return pair.second == value; });
}

Graph without_homes(const Graph& graph) {
  Graph seen = with_all_on_device(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (!graph.values[v].home.empty()) seen.values[v].bytes = Bytes(0);
  }
  return seen;
}

Graph with_needs(const Graph& graph) {
  Graph seen = without_homes(graph);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (size_t k = 0; k < graph.ops[o].variants.size(); ++k) {
      const Needs needs = needs_of(graph, graph.ops[o].variants[k]);
      Bytes& workspace = seen.ops[o].variants[k].workspace;
      // While the op runs, and just before it, when what it gives back is there.
      workspace += needs.read_homed + needs.made_homed;
      workspace = std::max(workspace, needs.read_homed + needs.given_back - needs.made);
    }
  }
  return seen;
}

Machine beside_homes(const Graph& graph, const Machine& machine) {
  require_homes(graph, machine);
  Machine beside = machine;
  for (const Value& value : graph.values) {
    if (value.home.empty()) continue;
    const int32_t home = find_memory(machine, value.home);
    std::optional<Bytes>& capacity = beside.memories[home].capacity;
    if (!capacity) continue;
    if (*capacity < value.bytes) {
      throw InputError(
          fmt::format("{} holds {} bytes, which is less than what lives there between "
                      "steps and what a step writes there",
                      value.home, machine.memories[home].capacity->count()));
    }
    *capacity -= value.bytes;
  }
  return beside;
}

}  // namespace reprise::internal::place
