// This is a bound on the time of every plan of a graph, from two instants that know of each other.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/moment.h"
#include "plan/graph/bound/params.h"

namespace reprise::internal::bound {

// Returns the time that every plan within the budget pays beyond facts.least_time for two moments,
// or nothing if no plan has both. The first moment begins earlier in plain training. The op `at` of
// each realization counts. The search for prices ends when it is known that the bound is not above
// `enough`, or when time is up; the bound then holds, too. The cost is O(a hundred minimum cuts)
// for each two variants.
std::optional<int64_t> cost_of_pair(const common::GraphFacts& facts, const Moment& first,
                                    const Moment& second, int64_t budget, int64_t enough,
                                    const common::SearchControl& control,
                                    const PairParams& params = {});

}  // namespace reprise::internal::bound
