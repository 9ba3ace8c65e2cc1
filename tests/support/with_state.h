// These are graphs whose values live in other memories between steps.
#pragma once

#include <random>
#include <string>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"

namespace reprise::testing {

// Gives some ops of the backward state that they change, as updates of an optimizer have: it lives in a
// memory behind the device. Some other ops read weights that live there and stay as they are.
inline Graph with_state(std::mt19937_64& random, Graph graph, const Machine& machine) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto add = [&](const std::string& id, int64_t bytes, ValueKind kind) {
    const std::string& home = machine.memories[1 + below(machine.memories.size() - 1)].name;
    graph.values.push_back({id, Bytes(bytes), kind, home});
    return static_cast<ValueIndex>(graph.values.size() - 1);
  };
  std::vector<char> may_not_run(graph.ops.size(), 0);
  for (const Choice& choice : graph.choices) {
    for (const Realization& realization : choice.realizations) {
      for (const OpIndex op : realization.ops) may_not_run[static_cast<size_t>(op)] = 1;
    }
  }
  std::vector<ValueIndex> weights;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    Op& op = graph.ops[o];
    const std::string number = std::to_string(o);
    const auto bytes = static_cast<int64_t>(1 + below(6));
    if (op.phase == Phase::kBackward && may_not_run[o] == 0 && below(2) == 0) {
      const ValueIndex before = add("state" + number, bytes, ValueKind::kInput);
      const ValueIndex after = add("state" + number + ".new", bytes, ValueKind::kState);
      graph.values.back().home = graph.values[static_cast<size_t>(before)].home;
      graph.results.push_back(after);
      const bool in_place = below(4) != 0;
      for (Variant& variant : op.variants) {
        variant.reads.push_back(before);
        variant.writes.push_back(after);
        if (in_place) variant.reuses.emplace_back(after, before);
      }
    } else if (below(3) == 0) {
      if (weights.empty() || below(2) == 0) {
        weights.push_back(add("weight" + number, bytes, ValueKind::kInput));
      }
      const ValueIndex weight = weights[below(weights.size())];
      for (Variant& variant : op.variants) variant.reads.push_back(weight);
    }
  }
  return graph;
}

}  // namespace reprise::testing
