// What each call of a recording costs: time and workspace.
#pragma once

#include <vector>

#include "capture/captured_graph.h"
#include "capture/recording.h"
#include "reprise/model/profile.h"
#include "reprise/runtime/measure.h"

namespace reprise::runtime {

struct CallCosts {
  std::vector<CallCost> costs;     // by call
  std::vector<TimeSpread> spread;  // by kind of call, named after its first one
};

// Walks through the step once on these inputs, as plain training does, and repeats every call with its
// real operands. Calls that are equal but for the values share the median of their times. Parameters,
// buffers and random state are left as they were. Memory: that of plain training.
CallCosts measure_calls(const Recording& recording, const Tensors& inputs,
                        const MeasureOptions& options);

}  // namespace reprise::runtime
