// This header says what a step costs beside the training itself.
#pragma once

#include <string>
#include <vector>

#include "reprise/model/units.h"

namespace reprise::runtime {

// An Overhead is a capture, a measurement or a search for a plan.
struct Overhead {
  std::string work = {};   // "capture", "measure" or "plan"
  std::string why = {};    // "memory outside of the step grew by 2.00 MiB"
  Nanos time = {};         // on the clock
  std::string found = {};  // "0.71 of plain training's peak, 1.05 of its time", or why it failed

  bool operator==(const Overhead&) const = default;
};

// Returns a line: "plan in 2.31 s, because memory outside of the step grew by 2.00 MiB: 0.71 of plain
// training's peak, 1.05 of its time".
std::string to_string(const Overhead& overhead);

}  // namespace reprise::runtime
