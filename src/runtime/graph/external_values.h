// Makes values of a graph of what was there before the step, so that other devices may read it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/graph/lower.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::graph {

// Returns the bytes that so many bytes count as in any memory of the step. Devices count in
// granules of other sizes, and a value of a graph has the same bytes in all memories, so that the
// largest ones count.
Bytes counted_anywhere(int64_t bytes, const rewrite::RewrittenStep& step);

// Makes values of the graph of the externals that variants on other devices read, behind those of
// the inputs, which are in the graph. Returns for each external its value, or -1. `needed` says
// which calls are run. Without such variants it does nothing.
std::vector<ValueIndex> add_external_values(LoweredStep& lowered,
                                            const rewrite::RewrittenStep& step,
                                            const std::vector<bool>& needed, const Tensors& inputs);

}  // namespace reprise::runtime::internal::graph
