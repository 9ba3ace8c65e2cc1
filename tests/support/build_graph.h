// Builds graphs that tests write by hand in few words.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

inline ValueIndex add_value(Graph& graph, const std::string& id, int64_t bytes,
                            ValueKind kind = ValueKind::kActivation) {
  graph.values.push_back({id, Bytes(bytes), kind});
  return static_cast<ValueIndex>(graph.values.size() - 1);
}

inline Variant make_variant(int64_t ns, std::vector<ValueIndex> reads,
                            std::vector<ValueIndex> writes, int64_t workspace = 0) {
  Variant variant;
  variant.time = Nanos(ns);
  variant.workspace = Bytes(workspace);
  variant.reads = std::move(reads);
  variant.writes = std::move(writes);
  return variant;
}

inline OpIndex add_op(Graph& graph, const std::string& id, std::vector<Variant> variants,
                      Phase phase = Phase::kForward) {
  Op op;
  op.id = id;
  op.phase = phase;
  op.variants = std::move(variants);
  graph.ops.push_back(std::move(op));
  return static_cast<OpIndex>(graph.ops.size() - 1);
}

inline Action run(const std::string& op, const std::string& variant = "default") {
  return {ActionKind::kRun, op, variant};
}
inline Action release(const std::string& value) { return {ActionKind::kFree, value, ""}; }

// The graph is x (10, input) -> a -> y (20) -> b -> z (30), where z is the result. Workspaces are 5
// and 7, times 1 and 2, and fixed is 100.
inline Graph two_op_graph() {
  Graph graph;
  graph.name = "two";
  graph.fixed = Bytes(100);
  const ValueIndex x = add_value(graph, "x", 10, ValueKind::kInput);
  const ValueIndex y = add_value(graph, "y", 20);
  const ValueIndex z = add_value(graph, "z", 30);
  add_op(graph, "a", {make_variant(1, {x}, {y}, 5)});
  add_op(graph, "b", {make_variant(2, {y}, {z}, 7)});
  graph.results = {z};
  return graph;
}

}  // namespace reprise::testing
