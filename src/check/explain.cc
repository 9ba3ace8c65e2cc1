#include "reprise/check/explain.h"

#include <algorithm>
#include <map>
#include <utility>

namespace reprise {
namespace {

// Bytes of every value while the action at the peak runs (or at the start).
class Peak {
 public:
  Peak(const Graph& graph, const std::vector<BoundAction>& actions, int64_t peak)
      : graph_(graph), held_(graph.values.size()) {
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (graph.values[v].kind == ValueKind::kInput) hold(static_cast<ValueIndex>(v));
    }
    for (int64_t a = 0; a < peak; ++a) pass(actions[a]);
    if (peak >= 0 && actions[peak].kind == ActionKind::kRun) enter(actions[peak]);
  }

  std::vector<Holder> holders() const {
    std::vector<Holder> result;
    const auto add = [&](const std::string& id, Bytes bytes) {
      if (bytes > Bytes(0)) result.push_back({id, bytes});
    };
    add("fixed", graph_.fixed);
    for (size_t v = 0; v < graph_.values.size(); ++v) add(graph_.values[v].id, held_[v]);
    add(workspace_.id, workspace_.bytes);
    std::stable_sort(result.begin(), result.end(),
                     [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
    return result;
  }

 private:
  const Variant& variant(const BoundAction& action) const {
    return graph_.ops[action.target].variants[action.variant];
  }
  void hold(ValueIndex value) { held_[value] = graph_.values[value].bytes; }
  void drop(ValueIndex value) { held_[value] = Bytes(0); }

  void pass(const BoundAction& action) {
    if (action.kind == ActionKind::kFree) return drop(action.target);
    take(variant(action));
    for (const ValueIndex value : variant(action).writes) hold(value);
  }

  void enter(const BoundAction& action) {
    take(variant(action));
    // Adds: a value that is already live is held twice while the op runs.
    for (const ValueIndex value : variant(action).writes) {
      held_[value] += graph_.values[value].bytes;
    }
    workspace_ = {"workspace of " + graph_.ops[action.target].id, variant(action).workspace};
  }

  void take(const Variant& taker) {
    for (const ValueIndex value : taker.consumes) drop(value);
    for (const auto& pair : taker.reuses) drop(pair.second);
  }

  const Graph& graph_;
  std::vector<Bytes> held_;
  Holder workspace_;
};

std::vector<Recomputed> find_recomputed(const Graph& graph,
                                        const std::vector<BoundAction>& actions) {
  std::map<OpIndex, Recomputed> by_op;
  for (const BoundAction& action : actions) {
    if (action.kind != ActionKind::kRun) continue;
    const Op& op = graph.ops[action.target];
    Recomputed& entry = by_op[action.target];
    entry.op = op.id;
    if (entry.runs++ > 0) entry.extra += op.variants[action.variant].time;
  }
  std::vector<Recomputed> result;
  for (auto& [op, entry] : by_op) {
    if (entry.runs > 1) result.push_back(std::move(entry));
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Recomputed& a, const Recomputed& b) { return a.extra > b.extra; });
  return result;
}

std::string describe(const Action& action) {
  if (action.kind == ActionKind::kFree) return "free " + action.id;
  return "run " + action.id + " " + action.variant;
}

}  // namespace

Explanation explain(const Graph& graph, const Plan& plan) {
  Explanation result;
  result.timeline = simulate(graph, plan);
  const int64_t peak = result.timeline.peak_action;
  result.peak_action = peak < 0 ? "start" : describe(plan.actions[peak]);
  const std::vector<BoundAction> actions = bind(graph, plan.actions);
  result.holders = Peak(graph, actions, peak).holders();
  result.recomputed = find_recomputed(graph, actions);
  for (const Recomputed& entry : result.recomputed) result.recomputed_time += entry.extra;
  result.baseline = baseline(graph);
  return result;
}

}  // namespace reprise
