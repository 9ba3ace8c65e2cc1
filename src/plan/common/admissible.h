// This header removes the variants that a user did not allow.
#pragma once

#include "reprise/model/graph.h"

namespace reprise::internal::common {

// Returns the graph without the variants that are less exact than `allowed`. Variants that read a
// value which no variant writes any more are removed too, and so are the realizations that lose an
// op. Ids stay, but positions of ops may change. Throws InputError if an op or a choice has nothing
// left, or if the rest is not a valid graph.
Graph restrict_exactness(const Graph& graph, Exactness allowed);

}  // namespace reprise::internal::common
