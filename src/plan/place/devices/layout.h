// Makes a plan from runs. A sequence of runs says what runs when, and on which device. A Layout
// adds the copies, waits and frees:
//
// 1. A run finds what it reads on its device: written there, or copied from the memory from which
//    the copies take least time.
// 2. If a device has no room for a run, the value leaves whose next read there is last. It goes to
//    a memory with room, if no other memory has it.
// 3. A copy stands as early in the order as the value and the bytes of where it goes allow.
// 4. A memory gives a value back when no later run reads it there. One memory keeps it for others.
//    With late frees, what another device reads from here stays while the next run goes on, if there
//    is room: the free would hold up the run.
//
// Bytes decide all this, and no time does: so the plan keeps to its bytes for any durations.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/place/devices/routes.h"
#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::internal::devices {

// A Ground has facts about a question that all layouts share. All references must outlive the
// object.
struct Ground {
  // `budget` is the capacity of the first memory.
  Ground(const Graph& of, const Machine& on, int64_t budget);

  const Graph& graph;
  const Machine& machine;
  Routes routes;
  std::vector<int64_t> capacities;             // by memory
  std::vector<std::vector<int32_t>> devices;   // by op and variant: where it runs
  std::vector<char> is_result, is_input;       // by value
  std::vector<std::vector<int32_t>> channels;  // by from and to; -1 if there is none

  int32_t device(const Run& run) const { return devices[run.op][run.variant]; }
  const Variant& variant(const Run& run) const { return graph.ops[run.op].variants[run.variant]; }
  int64_t bytes(ValueIndex value) const { return graph.values[value].bytes.count(); }
};

struct Layout {
  bool possible = false;  // false: some value has no way to where it is read
  int64_t excess = 0;     // the bytes by which the runs exceed the capacities, added up
  std::vector<BoundAction> actions;
  std::vector<size_t> positions;  // of the runs in `actions`
};

// The runs must read only what earlier runs have written. The cost is O(runs * (values per run +
// values held * memories)).
Layout lay_out(const Ground& ground, const std::vector<Run>& runs, bool late_frees);

}  // namespace reprise::internal::devices
