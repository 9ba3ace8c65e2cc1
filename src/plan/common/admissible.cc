#include "plan/common/admissible.h"

#include <algorithm>
#include <string>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::internal::common {
namespace {

// `lack` says what no variant is, and what to do.
std::string nothing_left(const std::string& what, const std::string& id, const std::string& lack) {
  return what + " '" + id + "' has no variant that " + lack;
}

// Drops the realizations that need an op without variants, and the variants of the ops that belong
// only to these realizations. Returns whether there were any.
bool drop_broken_realizations(Graph& graph, const std::string& lack) {
  std::vector<bool> dropped(graph.ops.size(), false);
  bool any = false;
  const auto broken = [&](const Realization& realization) {
    return std::any_of(realization.ops.begin(), realization.ops.end(),
                       [&](OpIndex op) { return graph.ops[op].variants.empty(); });
  };
  for (Choice& choice : graph.choices) {
    for (const Realization& realization : choice.realizations) {
      if (!broken(realization)) continue;
      for (const OpIndex op : realization.ops) dropped[op] = any = true;
    }
    std::erase_if(choice.realizations, broken);
    if (choice.realizations.empty()) {
      throw InputError(nothing_left("choice", choice.id, lack));
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
      for (const ValueIndex value : variant.writes) is_there[value] = true;
    }
  }
  bool any = false;
  for (Op& op : graph.ops) {
    any |= std::erase_if(op.variants, [&](const Variant& variant) {
             return std::any_of(variant.reads.begin(), variant.reads.end(),
                                [&](ValueIndex value) { return !is_there[value]; });
           }) > 0;
  }
  return any;
}

// Removes the variants that `is_out` says, and all that cannot run without them.
template <class Test>
Graph restricted(const Graph& graph, const Test& is_out, const std::string& lack) {
  Graph result = graph;
  size_t erased = 0;
  for (Op& op : result.ops) erased += std::erase_if(op.variants, is_out);
  if (erased == 0) return result;
  std::vector<bool> in_choice(graph.ops.size(), false);
  for (const Choice& choice : graph.choices) {
    for (const Realization& realization : choice.realizations) {
      for (const OpIndex op : realization.ops) in_choice[op] = true;
    }
  }
  while (drop_broken_realizations(result, lack) || drop_readers_of_nothing(result)) continue;
  std::vector<OpIndex> position(graph.ops.size(), -1);
  std::vector<Op> ops;
  for (size_t k = 0; k < result.ops.size(); ++k) {
    if (result.ops[k].variants.empty()) {
      if (in_choice[k]) continue;
      throw InputError(nothing_left("op", result.ops[k].id, lack));
    }
    position[k] = static_cast<OpIndex>(ops.size());
    ops.push_back(std::move(result.ops[k]));
  }
  result.ops = std::move(ops);
  for (Choice& choice : result.choices) {
    for (Realization& realization : choice.realizations) {
      for (OpIndex& op : realization.ops) op = position[op];
    }
  }
  validate(result);
  return result;
}

Graph with_first_unnamed(Graph graph, const Machine& machine) {
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) {
      if (find_memory(machine, variant.at) == 0) variant.at.clear();
    }
  }
  return graph;
}

}  // namespace

Graph restrict_exactness(const Graph& graph, Exactness allowed) {
  return restricted(
      graph, [&](const Variant& variant) { return variant.exactness > allowed; },
      std::string("is ") + to_string(allowed) + "; allow less exact ones or add one");
}

Graph restrict_devices(const Graph& graph, const Machine& machine) {
  const auto is_out = [&](const Variant& variant) {
    const int32_t memory = find_memory(machine, variant.at);
    return memory < 0 || !computes(machine, memory);
  };
  return restricted(with_first_unnamed(graph, machine), is_out,
                    "runs on a device of the machine; name a machine that has one");
}

Graph first_device_only(const Graph& graph, const Machine& machine) {
  return restricted(
      with_first_unnamed(graph, machine),
      [](const Variant& variant) { return !variant.at.empty(); },
      "runs on the first device; plan with a machine that has the others, or add one");
}

bool names_devices(const Graph& graph) {
  return std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) {
    return std::any_of(op.variants.begin(), op.variants.end(),
                       [](const Variant& variant) { return !variant.at.empty(); });
  });
}

}  // namespace reprise::internal::common
