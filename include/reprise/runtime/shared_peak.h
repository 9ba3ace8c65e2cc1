// The peak that a share of a budget is a share of.
#pragma once

#include <string>

#include "reprise/model/units.h"

namespace reprise::runtime {

// A SharedPeak is fixed when a share is first named for a step or a model.
struct SharedPeak {
  Bytes peak;    // of plain training, with what was live then
  Bytes inputs;  // of the step's inputs at that time

  bool operator==(const SharedPeak&) const = default;
};

// Returns the end of a message for a step that does not fit: its inputs have more bytes than those of the
// first batch, and what to do. The text is empty if they have not.
std::string beyond_first_batch(const SharedPeak& share_of, Bytes inputs);

}  // namespace reprise::runtime
