// simulate() defines what a plan costs.
//
// While an action runs, its memory is fixed + live values + written values that are not yet live +
// workspace. Three cases need care. A written value that is already live is a duplicate: it counts
// once more while the op runs and is gone at its end. A reused value counts once. A consumed value
// does not count (graph.h). After the action, the memory is fixed + live values. The peak is the
// largest of these sums, and the time is the sum of the times of the runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// A BoundAction is an action with its ids looked up. The target of a run is an OpIndex, and that of
// a free is a ValueIndex.
struct BoundAction {
  ActionKind kind = ActionKind::kRun;
  int32_t target = 0;
  int32_t variant = 0;

  bool operator==(const BoundAction&) const = default;
};

// Looks the ids of the actions up. Throws InputError, which names the action, if the graph lacks an
// id.
std::vector<BoundAction> bind(const Graph& graph, const std::vector<Action>& actions);

struct TimelineStep {
  Bytes during;  // the device bytes while the action runs, with the fixed bytes
  Bytes after;
  Nanos start;
  Nanos time;  // A free takes no time.

  bool operator==(const TimelineStep&) const = default;
};

struct Timeline {
  std::vector<TimelineStep> steps;  // one for each action
  Bytes initial;                    // the fixed bytes and the inputs
  Bytes peak;
  int64_t peak_action = -1;  // the first action that reaches the peak; -1 if the initial level does
  Nanos time;

  bool operator==(const Timeline&) const = default;
};

// Walks the actions and returns the memory and the time of each. Throws InputError for an unknown
// id, for a read or a free of a value that is not live, and for a free of an input; the error's
// JSON pointer names the action. verify() checks all other rules. The cost is O(actions * values
// per action).
Timeline simulate(const Graph& graph, const std::vector<Action>& actions);
Timeline simulate(const Graph& graph, const Plan& plan);

// Returns the cost of plain training, with which every plan is compared.
Baseline baseline(const Graph& graph);

}  // namespace reprise
