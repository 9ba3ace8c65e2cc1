// Finds the positions of ids that come from outside, from a plan for example.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// A FoundAction says which op and variant, or which value, an action names.
struct FoundAction {
  const char* what;     // what the action's id names: "operation" or "value"
  int32_t target = -1;  // the position of the op or value, or -1 if the graph has none of this id
  int32_t variant = 0;  // the position of a run's variant, or -1 if the op has none
};

// An IdIndex keeps views into the graph's strings. The graph must outlive it.
class IdIndex {
 public:
  explicit IdIndex(const Graph& graph)
      : graph_(graph), ops_(graph.ops.size()), values_(graph.values.size()) {
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      ops_.emplace(graph.ops[o].id, static_cast<OpIndex>(o));
      const std::vector<Variant>& variants = graph.ops[o].variants;
      if (variants.size() <= kFew) continue;
      Map& by_name = variants_[static_cast<OpIndex>(o)];
      for (size_t k = 0; k < variants.size(); ++k) {
        by_name.emplace(variants[k].name, static_cast<int32_t>(k));
      }
    }
    for (size_t v = 0; v < graph.values.size(); ++v) {
      values_.emplace(graph.values[v].id, static_cast<ValueIndex>(v));
    }
  }

  FoundAction find(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kRun: {
        const OpIndex found = op(action.id);
        return {"operation", found, found < 0 ? -1 : variant(found, action.variant)};
      }
      case ActionKind::kFree:
      case ActionKind::kCopy:
      case ActionKind::kWait:
      case ActionKind::kSend:
      case ActionKind::kReceive:
        return {"value", value(action.id)};
    }
    return {"action"};
  }

  // These three return -1 when there is none.
  OpIndex op(std::string_view id) const { return find(ops_, id); }
  ValueIndex value(std::string_view id) const { return find(values_, id); }
  int32_t variant(OpIndex op, std::string_view name) const {
    const std::vector<Variant>& variants = graph_.ops[op].variants;
    if (variants.size() > kFew) return find(variants_.at(op), name);
    const auto found = std::find_if(variants.begin(), variants.end(),
                                    [&](const Variant& variant) { return variant.name == name; });
    return found == variants.end() ? -1 : static_cast<int32_t>(found - variants.begin());
  }

 private:
  using Map = std::unordered_map<std::string_view, int32_t>;
  static int32_t find(const Map& map, std::string_view id) {
    const auto found = map.find(id);
    return found == map.end() ? -1 : found->second;
  }

  static constexpr size_t kFew = 16;  // So many variants are looked through one by one.

  const Graph& graph_;
  Map ops_, values_;
  std::unordered_map<OpIndex, Map> variants_;  // for the ops that have more than a few
};

}  // namespace reprise
