#include <fmt/format.h>

#include <algorithm>

#include "plan/place/homes/homes.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise::internal::homes {
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

Graph for_planners(const Graph& graph) {
  Graph seen = with_all_on_device(graph);
  seen.fixed = graph.fixed;
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

Machine for_planners(const Graph& graph, const Machine& machine) {
  require_homes(graph, machine);
  Machine beside = machine;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.home.empty()) continue;
    const int32_t home = find_memory(machine, value.home);
    if (find_channel(machine, home, 0) < 0 || find_channel(machine, 0, home) < 0) {
      throw InputError(fmt::format("\"{}\" lives in {}, and the machine has no channel each way "
                                   "between there and the device",
                                   value.id, value.home),
                       {.pointer = fmt::format("/values/{}/home", v)});
    }
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

}  // namespace reprise::internal::homes
