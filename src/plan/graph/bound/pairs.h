// A bound on the time of every plan of a graph from two instants that know of each other.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/moment.h"
#include "plan/common/search_control.h"

namespace reprise::internal::bound {

// What every plan within the budget pays beyond facts.least_time for two moments, of which the first begins earlier in
// plain training; of each realization its op `at` counts. Ends, with a bound that holds, as soon as that is not above
// `enough`, or when time is up. None: no plan has both. O(a hundred minimum cuts) for each two variants.
std::optional<int64_t> cost_of_pair(const common::GraphFacts& facts, const Moment& first,
                                    const Moment& second, int64_t budget, int64_t enough,
                                    const common::SearchControl& control);

}  // namespace reprise::internal::bound
