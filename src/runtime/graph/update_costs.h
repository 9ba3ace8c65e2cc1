// These are the measured costs of the optimizer's updates.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/runtime/measure.h"
#include "reprise/runtime/optimizer.h"
#include "runtime/graph/costs.h"
#include "runtime/step/recording.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::graph {

struct UpdateCosts {
  std::vector<WorkCost> by_update;
  std::vector<int64_t> state_bytes;  // by update: state that the optimizer makes at its first step
  std::vector<int64_t> movable_bytes;  // by update: the part of them that may move (homes.h)
  std::vector<TimeSpread> spread;      // one entry for each kind of update
};

// Measures each update on a stand-in for its parameter, so that nothing of the optimizer or the
// model is touched. Updates of equal parameters share one measurement. `optimizer` may be null if
// there are no updates. Memory: a few times that of the largest parameter.
UpdateCosts measure_updates(const step::Recording& recording, const step::Updates& updates,
                            const ParameterOptimizer* optimizer, const MeasureOptions& options);

// Returns the costs of all works. `works` are the costs that were measured in the step, without
// those of the updates.
WorkCosts with_updates(WorkCosts works, const UpdateCosts& costs, const step::Updates& updates);

}  // namespace reprise::runtime::internal::graph
