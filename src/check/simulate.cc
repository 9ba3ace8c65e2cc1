#include "reprise/check/simulate.h"

#include <fmt/format.h>

#include "model/id_index.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

[[noreturn]] void fail(size_t action, const std::string& message) {
  throw InputError(message, {.pointer = fmt::format("/actions/{}", action)});
}

// Walk is the state of a walk over the actions, one at a time.
class Walk {
 public:
  explicit Walk(const Graph& graph) : graph_(graph), live_(graph.values.size(), 0) {
    level_ = graph.fixed;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (graph.values[v].kind != ValueKind::kInput) continue;
      live_[v] = 1;
      level_ += graph.values[v].bytes;
    }
    timeline_.initial = timeline_.peak = level_;
  }

  void step(const BoundAction& action) {
    const TimelineStep step = perform(action);
    if (step.during > timeline_.peak) {
      timeline_.peak = step.during;
      timeline_.peak_action = static_cast<int64_t>(timeline_.steps.size());
    }
    timeline_.time += step.time;
    timeline_.steps.push_back(step);
  }

  Timeline take() { return std::move(timeline_); }

 private:
  TimelineStep perform(const BoundAction& action) {
    switch (action.kind) {
      case ActionKind::kRun:
        return run(graph_.ops[action.target], action.variant);
      case ActionKind::kFree:
        return free(action.target);
    }
    throw InternalError("an action of no kind");
  }

  size_t position() const { return timeline_.steps.size(); }
  Bytes bytes(ValueIndex value) const { return graph_.values[value].bytes; }

  TimelineStep run(const Op& op, int32_t index) {
    const Variant& variant = op.variants[index];
    for (const ValueIndex value : variant.reads) {
      if (!live_[value]) {
        fail(position(), fmt::format("{} {} reads {}, which is not live", op.id, variant.name,
                                     graph_.values[value].id));
      }
    }
    // Values that the run takes are gone before its outputs are counted. So consumed bytes are not
    // counted at all, and reused bytes are counted as the output's.
    for (const ValueIndex value : variant.consumes) take(value);
    for (const auto& pair : variant.reuses) take(pair.second);
    Bytes duplicates;
    for (const ValueIndex value : variant.writes) {
      if (live_[value]) {
        duplicates += bytes(value);
      } else {
        live_[value] = 1;
        level_ += bytes(value);
      }
    }
    return {level_ + duplicates + variant.workspace, level_, timeline_.time, variant.time};
  }

  // The value is live until the end of the free.
  TimelineStep free(ValueIndex value) {
    if (!live_[value]) {
      fail(position(), fmt::format("frees {}, which is not live", graph_.values[value].id));
    }
    if (graph_.values[value].kind == ValueKind::kInput) {
      fail(position(), fmt::format("frees the input {}", graph_.values[value].id));
    }
    const Bytes before = level_;
    take(value);
    return {before, level_, timeline_.time, Nanos(0)};
  }

  void take(ValueIndex value) {
    live_[value] = 0;
    level_ -= bytes(value);
  }

  const Graph& graph_;
  std::vector<char> live_;
  Bytes level_;
  Timeline timeline_;
};

}  // namespace

std::vector<BoundAction> bind(const Graph& graph, const std::vector<Action>& actions) {
  const IdIndex index(graph);
  std::vector<BoundAction> bound;
  bound.reserve(actions.size());
  for (size_t a = 0; a < actions.size(); ++a) {
    const Action& action = actions[a];
    const FoundAction found = index.find(action);
    if (found.target < 0) {
      fail(a, fmt::format("graph \"{}\" has no {} \"{}\"", graph.name, found.what, action.id));
    }
    if (found.variant < 0) {
      fail(a, fmt::format("operation \"{}\" has no variant \"{}\"", action.id, action.variant));
    }
    bound.push_back({action.kind, found.target, found.variant});
  }
  return bound;
}

Timeline simulate(const Graph& graph, const std::vector<Action>& actions) {
  validate(graph);
  Walk walk(graph);
  for (const BoundAction& action : bind(graph, actions)) walk.step(action);
  return walk.take();
}

Timeline simulate(const Graph& graph, const Plan& plan) { return simulate(graph, plan.actions); }

Baseline baseline(const Graph& graph) {
  validate(graph);
  const Timeline timeline = simulate(graph, with_frees(graph, plain_runs(graph)));
  return {timeline.peak, timeline.time};
}

}  // namespace reprise
