#include "plan/admissible.h"

#include <algorithm>
#include <string>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::internal {
namespace {

std::string nothing_left(const std::string& what, const std::string& id, Exactness allowed) {
  return what + " '" + id + "' has no variant that is " + to_string(allowed) +
         "; allow less exact ones or add one";
}

// Drops the realizations that need an op without variants; says which ops these are.
std::vector<bool> restrict_choices(Graph& graph, Exactness allowed) {
  std::vector<bool> dropped(graph.ops.size(), false);
  const auto broken = [&](const std::vector<OpIndex>& realization) {
    return std::any_of(realization.begin(), realization.end(), [&](OpIndex op) {
      return graph.ops[static_cast<size_t>(op)].variants.empty();
    });
  };
  for (Choice& choice : graph.choices) {
    for (const std::vector<OpIndex>& realization : choice.realizations) {
      if (!broken(realization)) continue;
      for (const OpIndex op : realization) dropped[static_cast<size_t>(op)] = true;
    }
    std::erase_if(choice.realizations, broken);
    if (choice.realizations.empty()) {
      throw InputError(nothing_left("choice", choice.id, allowed));
    }
    // An op may stand in two realizations of its choice.
    for (const std::vector<OpIndex>& realization : choice.realizations) {
      for (const OpIndex op : realization) dropped[static_cast<size_t>(op)] = false;
    }
  }
  return dropped;
}

}  // namespace

Graph restrict_exactness(const Graph& graph, Exactness allowed) {
  Graph result = graph;
  for (Op& op : result.ops) {
    std::erase_if(op.variants, [&](const Variant& v) { return v.exactness > allowed; });
  }
  const std::vector<bool> dropped = restrict_choices(result, allowed);
  std::vector<OpIndex> position(graph.ops.size(), -1);
  std::vector<Op> ops;
  for (size_t k = 0; k < result.ops.size(); ++k) {
    if (dropped[k]) continue;
    if (result.ops[k].variants.empty()) {
      throw InputError(nothing_left("op", result.ops[k].id, allowed));
    }
    position[k] = static_cast<OpIndex>(ops.size());
    ops.push_back(std::move(result.ops[k]));
  }
  result.ops = std::move(ops);
  for (Choice& choice : result.choices) {
    for (std::vector<OpIndex>& realization : choice.realizations) {
      for (OpIndex& op : realization) op = position[static_cast<size_t>(op)];
    }
  }
  return result;
}

}  // namespace reprise::internal
