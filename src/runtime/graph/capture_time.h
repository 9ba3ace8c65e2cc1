// Says how long a capture may take.
#pragma once

#include "reprise/model/units.h"

namespace reprise::runtime::internal::graph {

// A CaptureTime is what one capture may spend. A capture of a step of more than 100 ms takes about
// eight steps of plain training, and any other capture up to two seconds. A part of these is left
// for lowering the recording. The time in which alternatives are found is spent beside them,
// because kernels may have to be compiled. A followed step is captured between two steps of the
// training, in less time, and in least time where steps of other shapes are known.
struct CaptureTime {
  Nanos begun = {};  // on the wall clock, when the capture began
  Nanos step = {};   // of one run of the step, as far as it is known
  Nanos most_of_short{1'800'000'000};
  double steps_of_long = 7.5;

  // Returns when the measurement should be over, on the same clock.
  Nanos end() const {
    constexpr Nanos kShortStep{100'000'000};
    if (step <= kShortStep) return begun + most_of_short;
    return begun + Nanos(static_cast<int64_t>(static_cast<double>(step.count()) * steps_of_long));
  }
};

}  // namespace reprise::runtime::internal::graph
