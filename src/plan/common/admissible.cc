#include "plan/common/admissible.h"

#include <algorithm>
#include <string>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::internal::common {
namespace {

std::string nothing_left(const std::string& what, const std::string& id, Exactness allowed) {
  return what + " '" + id + "' has no variant that is " + to_string(allowed) +
         "; allow less exact ones or add one";
}

// Drops the realizations that need an op without variants, and the variants of the ops that belong
// only to these realizations. Returns whether there were any.
bool drop_broken_realizations(Graph& graph, Exactness allowed) {
  std::vector<bool> dropped(graph.ops.size(), false);
  bool any = false;
  const auto broken = [&](const Realization& realization) {
    return std::any_of(realization.ops.begin(), realization.ops.end(), [&](OpIndex op) {
      return graph.ops[static_cast<size_t>(op)].variants.empty();
    });
  };
  for (Choice& choice : graph.choices) {
    for (const Realization& realization : choice.realizations) {
      if (!broken(realization)) continue;
      for (const OpIndex op : realization.ops) dropped[static_cast<size_t>(op)] = any = true;
    }
    std::erase_if(choice.realizations, broken);
    if (choice.realizations.empty()) {
      throw InputError(nothing_left("choice", choice.id, allowed));
    }
  }
  for (size_t k = 0; k < dropped.size(); ++k) {
    if (dropped[k]) graph.ops[k].variants.clear();
  }
  return any;
}

// Drops the variants that read a value which no variant writes any more. Returns whether there were
// any.
bool drop_readers_of_nothing(Graph& graph) {
  std::vector<bool> is_there(graph.values.size());
  for (size_t v = 0; v < is_there.size(); ++v) {
    is_there[v] = graph.values[v].kind == ValueKind::kInput;
  }
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) {
      for (const ValueIndex value : variant.writes) is_there[static_cast<size_t>(value)] = true;
    }
  }
  bool any = false;
  for (Op& op : graph.ops) {
    any |= std::erase_if(op.variants, [&](const Variant& variant) {
             return std::any_of(variant.reads.begin(), variant.reads.end(), [&](ValueIndex value) {
               return !is_there[static_cast<size_t>(value)];
             });
           }) > 0;
  }
  return any;
}

}  // namespace

Graph restrict_exactness(const Graph& graph, Exactness allowed) {
  Graph result = graph;
  size_t erased = 0;
  for (Op& op : result.ops) {
    erased += std::erase_if(op.variants, [&](const Variant& v) { return v.exactness > allowed; });
  }
  if (erased == 0) return result;
  std::vector<bool> in_choice(graph.ops.size(), false);
  for (const Choice& choice : graph.choices) {
    for (const Realization& realization : choice.realizations) {
      for (const OpIndex op : realization.ops) in_choice[static_cast<size_t>(op)] = true;
    }
  }
  while (drop_broken_realizations(result, allowed) || drop_readers_of_nothing(result)) continue;
  std::vector<OpIndex> position(graph.ops.size(), -1);
  std::vector<Op> ops;
  for (size_t k = 0; k < result.ops.size(); ++k) {
    if (result.ops[k].variants.empty()) {
      if (in_choice[k]) continue;
      throw InputError(nothing_left("op", result.ops[k].id, allowed));
    }
    position[k] = static_cast<OpIndex>(ops.size());
    ops.push_back(std::move(result.ops[k]));
  }
  result.ops = std::move(ops);
  for (Choice& choice : result.choices) {
    for (Realization& realization : choice.realizations) {
      for (OpIndex& op : realization.ops) op = position[static_cast<size_t>(op)];
    }
  }
  validate(result);
  return result;
}

}  // namespace reprise::internal::common
