// Computes when every action and every message of a plan of a pipeline begins and ends.
#pragma once

#include <string>
#include <vector>

#include "check/pipeline_structure.h"
#include "reprise/check/pipeline.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::check {

struct PipelineTimes {
  std::vector<std::vector<PipelineStep>> steps;  // by device and action
  std::vector<MessageTransfer> messages;         // as PipelineStructure::messages
  // After a deadlock, each device has here the first action that waits for ever, or -1, and a text
  // that says what the action waits for. Both lists are empty if there is no deadlock.
  std::vector<int64_t> stuck;
  std::vector<std::string> why;
};

// Goes through the orders until no action can begin. `times` has the compute time of every action,
// by device. The structure must be complete. O(actions + messages).
PipelineTimes times_of(const Pipeline& pipeline, const PipelinePlan& plan,
                       const PipelineStructure& structure,
                       const std::vector<std::vector<Nanos>>& times);

}  // namespace reprise::internal::check
