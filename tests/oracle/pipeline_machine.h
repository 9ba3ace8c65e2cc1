// This is a machine that executes a plan of a pipeline: devices, links and a clock that goes from
// event to event. It reads the chain itself, knows no graph, and counts physical bytes. It is the
// oracle for simulate() of check/pipeline.h. It takes valid plans only; the caller checks `stuck`.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/model/pipeline.h"

namespace reprise::testing {

struct MachineRun {
  bool stuck = false;
  int64_t time = 0;
  std::vector<int64_t> peaks;                // by device
  std::vector<std::vector<int64_t>> starts;  // by device and action
};

MachineRun run_machine(const Pipeline& pipeline, const PipelinePlan& plan);

}  // namespace reprise::testing
