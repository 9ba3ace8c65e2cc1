// Makes plans that use alternatives wherever they can, whether they pay or not.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "fixture.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::testing {

// Returns options that take all alternatives with plain training's bits, also those that a capture
// uses only where they are named.
inline AlternativeOptions every_bitwise() {
  AlternativeOptions options;
  for (const AlternativeInfo& info : alternatives()) {
    if (info.in_graph && info.exactness == Exactness::kBitwise) options.only.push_back(info.name);
  }
  return options;
}

// Says whether the variant is of this alternative (empty: of any).
inline bool is_of(const Variant& variant, const std::string& kind) {
  return kind.empty() ? !variant.alternative.empty() : variant.alternative == kind;
}

// Returns the realizations of this kind (empty: of any), without plain training's.
inline std::vector<size_t> realizations_of(const Choice& choice, const std::string& kind) {
  std::vector<size_t> all;
  for (size_t r = 1; r < choice.realizations.size(); ++r) {
    if (kind.empty() || choice.realizations[r].name == kind) all.push_back(r);
  }
  return all;
}

// Returns the largest number of alternatives of this kind (empty: of any) that an operation has.
inline size_t ways_of(const Graph& graph, const std::string& kind) {
  size_t most = 0;
  for (const Op& op : graph.ops) {
    size_t count = 0;
    for (const Variant& variant : op.variants) count += is_of(variant, kind);
    most = std::max(most, count);
  }
  for (const Choice& choice : graph.choices) {
    most = std::max(most, realizations_of(choice, kind).size());
  }
  return most;
}

// Returns the graph with alternatives of this kind (empty: of any) that take no time, so that a
// plan without a limit uses them wherever it can. If an operation has several, the `pick`-th takes
// no time, and the others are left out or too slow to be used.
inline Graph favouring(Graph graph, const std::string& kind, size_t pick) {
  for (Op& op : graph.ops) {
    size_t others = 0;
    for (const Variant& variant : op.variants) others += is_of(variant, kind);
    size_t k = 0;
    std::erase_if(op.variants, [&](const Variant& variant) {
      if (is_of(variant, kind)) return k++ != pick % others;
      return !variant.alternative.empty();
    });
    for (Variant& variant : op.variants) {
      if (is_of(variant, kind)) variant.time = Nanos(0);
    }
  }
  const auto cost = [&](const Realization& realization, Nanos time) {
    for (const OpIndex op : realization.ops) {
      for (Variant& variant : graph.ops[static_cast<size_t>(op)].variants) variant.time = time;
    }
  };
  for (const Choice& choice : graph.choices) {
    for (size_t r = 1; r < choice.realizations.size(); ++r) {
      cost(choice.realizations[r], Nanos(1'000'000'000'000));
    }
    const std::vector<size_t> wanted = realizations_of(choice, kind);
    if (!wanted.empty()) cost(choice.realizations[wanted[pick % wanted.size()]], Nanos(0));
  }
  return graph;
}

// Counts the runs of the plan that are alternatives of this kind.
inline size_t uses(const CapturedStep& step, const Plan& plan, const std::string& kind) {
  std::set<OpIndex> replaced;
  for (const Choice& choice : step.graph().choices) {
    for (const size_t r : realizations_of(choice, kind)) {
      for (const OpIndex op : choice.realizations[r].ops) replaced.insert(op);
    }
  }
  size_t count = 0;
  for (const BoundAction& action : bind(step.graph(), plan.actions)) {
    if (action.kind != ActionKind::kRun) continue;
    const Op& op = step.graph().ops.at(static_cast<size_t>(action.target));
    const Variant& variant = op.variants.at(static_cast<size_t>(action.variant));
    count += is_of(variant, kind) || replaced.contains(action.target);
  }
  return count;
}

// Returns the largest difference over the largest element.
inline double apart(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return 1;
  if (!a.defined()) return 0;
  return ((a - b).abs().max() / a.abs().max().clamp_min(1e-20)).item<double>();
}

// Returns a plan without a limit that uses this kind (empty: all of them) wherever it can. If an
// operation has several, the plan uses the `pick`-th.
inline Plan forced(const CapturedStep& step, const std::string& kind, size_t pick) {
  const Graph graph = favouring(step.graph(), kind, pick);
  const PlanResult result = plan(
      graph,
      {.planner = "graph", .time_limit = Nanos(100'000'000), .allow = Exactness::kApproximate});
  Plan plan = result.plan.value();
  const Timeline timeline = simulate(step.graph(), plan);
  plan.peak = timeline.peak;
  plan.time = timeline.time;
  plan.baseline = baseline(step.graph());
  plan.lower_bound = Nanos(0);
  plan.termination = Termination::kFeasible;
  return plan;
}

}  // namespace reprise::runtime::testing
