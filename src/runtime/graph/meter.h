// What each work of a recording costs: time and workspace.
#pragma once

#include <vector>

#include "runtime/graph/lower.h"
#include "runtime/step/recording.h"
#include "reprise/model/profile.h"
#include "reprise/runtime/measure.h"

namespace reprise::runtime::internal::graph {

struct WorkCosts {
  std::vector<WorkCost> by_work;     // by work
  std::vector<TimeSpread> spread;  // by kind of work, named after its first one
};

// Walks through the step on these inputs, as plain training does: once repeating every work with its
// real operands, alternatives beside what they stand for; then some times in order, without what only alternatives
// run (WorkTimes says what becomes of the times). Parameters, buffers and random state are left as they were. Memory: that of plain
// training, and the values that only alternatives make. Updates are left to Updater::measure().
WorkCosts measure_works(const step::Recording& recording, const step::Works& works,
                        const rewrite::Alternatives& alternatives, const step::Updates& updates,
                        const Tensors& inputs, const MeasureOptions& options);

}  // namespace reprise::runtime::internal::graph
