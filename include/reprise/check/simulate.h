// The single definition of what a plan costs.
//
// Memory while an action runs = fixed + live values + written values not yet live + workspace, where a
// written value that is already live is a duplicate (counted while the op runs, gone at its end), a
// reused input is counted once, and a consumed value is not counted (graph.h). After it: fixed + live.
// Peak = the largest of these; time = the sum of the times of the runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// An action with its ids looked up. target is an OpIndex (run) or a ValueIndex (free).
struct BoundAction {
  ActionKind kind = ActionKind::kRun;
  int32_t target = 0;
  int32_t variant = 0;

  bool operator==(const BoundAction&) const = default;
};

// Throws InputError that names the action if an id is not the graph's.
std::vector<BoundAction> bind(const Graph& graph, const std::vector<Action>& actions);

struct TimelineStep {
  Bytes during;  // device bytes while the action runs, fixed included
  Bytes after;
  Nanos start;
  Nanos time;  // 0 for a free

  bool operator==(const TimelineStep&) const = default;
};

struct Timeline {
  std::vector<TimelineStep> steps;  // one per action
  Bytes initial;                    // fixed + inputs
  Bytes peak;
  int64_t peak_action = -1;  // the first that reaches the peak; -1: the initial level does
  Nanos time;

  bool operator==(const Timeline&) const = default;
};

// Throws InputError for unknown ids, for a read or free of a value that is not live, for a free of
// an input; with the position of the action as JSON pointer. Other rules (roles,
// results, phases, budget) are verify()'s. O(actions * values per action).
Timeline simulate(const Graph& graph, const std::vector<Action>& actions);
Timeline simulate(const Graph& graph, const Plan& plan);

// Plain training of the graph: what every plan is compared with.
Baseline baseline(const Graph& graph);

}  // namespace reprise
