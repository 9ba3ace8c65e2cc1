// Graphs without the variants that a user did not allow.
#pragma once

#include "reprise/model/graph.h"

namespace reprise::internal::common {

// The graph without the variants that are less exact than `allowed`, without those that read what then nothing writes,
// and without the realizations of choices that thereby lose an op. Ids stay, positions of ops may change. Throws
// InputError if an op or a choice has nothing left, or what is left is no valid graph.
Graph restrict_exactness(const Graph& graph, Exactness allowed);

}  // namespace reprise::internal::common
