// Measures what each work of a recorded step costs: its time and its workspace.
#pragma once

#include "reprise/runtime/measure.h"
#include "runtime/graph/capture_time.h"
#include "runtime/graph/costs.h"
#include "runtime/graph/stand_ins.h"
#include "runtime/online/within.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::graph {

// Walks through the step on these inputs, as plain training does. The first walk runs every work once
// on its real operands. Where a work has alternatives, it measures these beside it: each kind of work
// once, with repetitions. Further walks run plain training's works in order; WorkTimes makes one time
// of all samples. Updates cost nothing here: measure_updates() measures them. Parameters, buffers and
// the random state are left as they were.
//
// There are as many repetitions and walks as `options` ask for and `most` leaves time for, and at
// least one of each.
//
// Memory: that of plain training, and the values that only alternatives make. With a budget there are
// no walks in order, and all times are those of works that are repeated. `within` not null: operands
// are evicted, and made again before they are needed. `stand_ins` not null: each kind of work runs
// alone on stand-ins, and nothing else runs.
WorkCosts measure_works(const rewrite::RewrittenStep& step, const Tensors& inputs,
                        const MeasureOptions& options, const CaptureTime& most,
                        online::Within* within, StandIns* stand_ins);

}  // namespace reprise::runtime::internal::graph
