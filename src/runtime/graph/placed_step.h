// A captured step has no place for its parameters and the optimizer's state: they are bytes beside
// it. A PlacedStep is the step with values for what has its home in another memory.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "runtime/graph/homed_values.h"
#include "runtime/graph/step_program.h"

namespace reprise::runtime::internal::graph {

// A Placement says what may lie in another memory between the steps. A plan says what lies there.
struct Placement {
  bool optimizer = false, parameters = false;  // StepPlanOptions: offload_optimizer, ..._parameters
  std::string memory = {};                     // its name, if one of them is true

  bool operator==(const Placement&) const = default;
};

Placement placement_of(const StepPlanOptions& options);
// Returns what may lie there.
HomedValues homed_values(const StepProgram& program, const CaptureOptions& options,
                         const Placement& placement);

struct PlacedStep {
  Placement placement = {};
  // The values of the lowered step come first. Each homed value stands behind them, and a second one
  // if an update writes it: as it is after the update. The home of these values is the memory.
  Graph graph = {};
  HomedValues homed = {};
  std::vector<size_t> homed_of_value = {};  // by value behind those of the lowered step

  // Notes what a plan leaves on the device.
  void note_stays(const std::vector<Action>& actions);
  // Returns the bytes of that.
  Bytes staying() const;
  // Returns the position in `homed` of a value, if it has its home there.
  std::optional<size_t> homed_of(ValueIndex value) const;
};

// Returns the lowered step of the program in this placement. `fixed` are the bytes beside it.
PlacedStep placed(const StepProgram& program, const CaptureOptions& options, Placement placement,
                  Bytes fixed);

}  // namespace reprise::runtime::internal::graph
