// A captured step has no place for its parameters and the optimizer's state: they are bytes beside
// it. A PlacedStep is the step with values for what has its home in another memory.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "runtime/graph/far_things.h"
#include "runtime/graph/step_program.h"

namespace reprise::runtime::internal::graph {

// A Placement says what lies in another memory between the steps.
struct Placement {
  bool optimizer = false, parameters = false;  // StepPlanOptions: offload_optimizer, ..._parameters
  std::string memory = {};                     // its name, if one of them is true
  KeptThings kept = {};                        // what stays on the device all the same

  bool operator==(const Placement&) const = default;
};

// Returns the placement in which the options let everything lie there but these.
Placement placement_of(const StepPlanOptions& options, KeptThings kept);
// Returns what lies there.
FarThings far_things(const StepProgram& program, const CaptureOptions& options,
                     const Placement& placement);

struct PlacedStep {
  Placement placement = {};
  // The values of the lowered step come first. Each thing has a value behind them, and a second one
  // if an update writes it: as it is after the update. The home of these values is the memory.
  Graph graph = {};
  FarThings things = {};
  std::vector<size_t> thing_of_value = {};  // by value behind those of the lowered step

  // Returns the position in `things` of the thing that a value is, if it is one.
  std::optional<size_t> thing_of(ValueIndex value) const;
};

// Returns the lowered step of the program in this placement. `fixed` are the bytes beside it.
PlacedStep placed(const StepProgram& program, const CaptureOptions& options, Placement placement,
                  Bytes fixed);

}  // namespace reprise::runtime::internal::graph
