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

// Names finds the position of an id in a list. Plans name most things in the order of their graph or
// against it, so the neighbours of what was found last are looked at first. The list must outlive it.
template <class Item>
class Names {
 public:
  explicit Names(const std::vector<Item>& items) : items_(items), by_id_(items.size()) {
    for (size_t i = 0; i < items.size(); ++i) by_id_.emplace(items[i].id, static_cast<int32_t>(i));
  }

  // Returns -1 if there is none.
  int32_t find(std::string_view id) {
    for (const size_t near : {last_ + 1, last_ - 1}) {
      if (near < items_.size() && items_[near].id == id) return static_cast<int32_t>(last_ = near);
    }
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return -1;
    last_ = static_cast<size_t>(found->second);
    return found->second;
  }

 private:
  const std::vector<Item>& items_;
  std::unordered_map<std::string_view, int32_t> by_id_;
  size_t last_ = 0;  // the position that was found last
};

// An IdIndex keeps views into the graph's strings. The graph must outlive it.
class IdIndex {
 public:
  explicit IdIndex(const Graph& graph) : graph_(graph), ops_(graph.ops), values_(graph.values) {
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const std::vector<Variant>& variants = graph.ops[o].variants;
      if (variants.size() <= kFew) continue;
      Map& by_name = variants_[static_cast<OpIndex>(o)];
      for (size_t k = 0; k < variants.size(); ++k) {
        by_name.emplace(variants[k].name, static_cast<int32_t>(k));
      }
    }
  }

  FoundAction find(const Action& action) {
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
  OpIndex op(std::string_view id) { return ops_.find(id); }
  ValueIndex value(std::string_view id) { return values_.find(id); }
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
  Names<Op> ops_;
  Names<Value> values_;
  std::unordered_map<OpIndex, Map> variants_;  // for the ops that have more than a few
};

}  // namespace reprise
