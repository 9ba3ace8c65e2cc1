// This header removes the variants that a user did not allow, or that a machine cannot run.
#pragma once

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"

namespace reprise::internal::common {

// Returns the graph without the variants that are less exact than `allowed`. Variants that read a
// value which no variant writes any more are removed too, and so are the realizations that lose an
// op. Ids stay, but positions of ops may change. Throws InputError if an op or a choice has nothing
// left, or if the rest is not a valid graph.
Graph restrict_exactness(const Graph& graph, Exactness allowed);

// Returns the graph without the variants that run on no device of the machine. Variants that name
// the first memory name none then, as plain training's do. The rest is as above.
Graph restrict_devices(const Graph& graph, const Machine& machine);
// Returns the graph with the variants of the first device of the machine alone.
Graph first_device_only(const Graph& graph, const Machine& machine);
// Says whether a variant names a memory.
bool names_devices(const Graph& graph);

}  // namespace reprise::internal::common
