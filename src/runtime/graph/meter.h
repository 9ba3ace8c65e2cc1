// Measures what each work of a recorded step costs: its time and its workspace.
#pragma once

#include "runtime/graph/costs.h"
#include "runtime/online/within.h"
#include "runtime/rewrite/alternative.h"
#include "reprise/runtime/measure.h"

namespace reprise::runtime::internal::graph {

// Walks through the step on these inputs, as plain training does. The first walk repeats every work
// on its real operands, with the alternatives of a call beside the call. Further walks run plain
// training's works in order; WorkTimes makes one time of all samples. Updates cost nothing here:
// measure_updates() measures them. Parameters, buffers and the random state are left as they were.
//
// Memory: that of plain training, and the values that only alternatives make. With `within` not null
// it is the budget: operands are evicted, and made again before they are needed. Then there are no
// walks in order, and all times are those of works that are repeated.
WorkCosts measure_works(const rewrite::RewrittenStep& step, const Tensors& inputs,
                        const MeasureOptions& options, online::Within* within);

}  // namespace reprise::runtime::internal::graph
