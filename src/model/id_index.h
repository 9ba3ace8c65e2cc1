// Ids to positions, for the code that meets ids from outside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise {

// Keeps views into the graph's strings.
class IdIndex {
 public:
  explicit IdIndex(const Graph& graph) : graph_(graph) {
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

  // All three: -1 when there is none.
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

  static constexpr size_t kFew = 16;  // variants that are looked through one by one

  const Graph& graph_;
  Map ops_, values_;
  std::unordered_map<OpIndex, Map> variants_;  // of the ops that have many
};

}  // namespace reprise
