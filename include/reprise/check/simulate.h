// simulate() defines what a plan costs.
//
// While an action runs, its memory is fixed + live values + written values that are not yet live +
// workspace. Three cases need care. A written value that is already live is a duplicate: it counts
// once more while the op runs and is gone at its end. A reused value counts once. A consumed value
// does not count (graph.h). After the action, the memory is fixed + live values. The peak is the
// largest of these sums, and the time is the sum of the times of the runs.
//
// On a machine with several memories (model/machine.h) these are the bytes and the time of the
// device. A copied value counts where it arrives from the copy on, and where it comes from until it
// is freed there. So bytes depend on the order of the actions alone: a plan that holds its budget
// holds it however long runs and copies take. Time is that of the compute stream, with the time that
// it waits for copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise {

// Looks the names of the actions up. Throws InputError, which names the action, if the graph lacks
// an id or the machine a memory, a device or a channel, and if a copy comes after something that is
// no earlier copy.
std::vector<BoundAction> bind(const Graph& graph, const std::vector<Action>& actions,
                              const Machine& machine = {});

// Throws InputError, with a JSON pointer, unless every home of a value is a memory of the machine behind
// the device.
void require_homes(const Graph& graph, const Machine& machine);

struct TimelineStep {
  Bytes during;  // the bytes of the first memory while the action runs, with the fixed bytes
  Bytes after;
  Nanos start;
  // Copies, sends and receives do not hold up the runs. A wait may take time. A free takes none on a machine with one
  // device. With several, it may hold up the runs of its memory (docs/memories.md).
  Nanos time;
  int32_t device = 0;  // the memory whose clock `start` and `time` are of

  bool operator==(const TimelineStep&) const = default;
};

// A Transfer is a copy or a message on its channel.
struct Transfer {
  int64_t action = 0;  // the position of the copy or of the send in the plan
  ValueIndex value = 0;
  int32_t channel = 0;
  Nanos issued = {};  // when the runs before it, at both of its ends, were over
  Nanos start = {};
  Nanos end = {};

  bool operator==(const Transfer&) const = default;
};

struct Timeline {
  std::vector<TimelineStep> steps;  // one for each action
  Bytes initial;                    // the fixed bytes and the inputs
  Bytes peak;
  int64_t peak_action = -1;  // the first action that reaches the peak; -1 if the initial level does
  Nanos time;                // when the last device is done
  std::vector<Transfer> transfers =
      {};                         // in the order of the plan; messages when both ends are there
  std::vector<Bytes> peaks = {};  // of every memory of the machine; [0] is `peak`
  std::vector<int64_t> peak_actions = {};  // the same of every memory; [0] is `peak_action`

  bool operator==(const Timeline&) const = default;
};

// Walks the actions and returns the memory and the time of each. Throws InputError for an unknown
// name, for a read, copy, wait or free of a value that is not there or still under way, for a copy
// to where the value is, for a wait for a message that cannot start, and for a free of an input; the error's JSON pointer names the action.
// verify() checks all other rules. The cost is O(actions * values per action).
Timeline simulate(const Graph& graph, const std::vector<Action>& actions,
                  const Machine& machine = {});
Timeline simulate(const Graph& graph, const Plan& plan, const Machine& machine = {});
// Does the same for a caller that asks often: nothing is looked up or validated. Both must be
// valid.
Timeline simulate(const Graph& graph, const std::vector<BoundAction>& actions,
                  const Machine& machine = {});

// Returns the cost of plain training, with which every plan is compared. All values live on the device
// there.
Baseline baseline(const Graph& graph);

}  // namespace reprise
