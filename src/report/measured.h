// A run log along the step, coarse enough to be drawn.
#pragma once

#include <vector>

#include "report/walk.h"
#include "reprise/model/runlog.h"

namespace reprise::report {

struct MeasuredSpan {
  double start = 0, end = 0;  // on the clock of the plan
  Bytes bytes;                // the most
  Nanos planned, measured;    // sums

  bool operator==(const MeasuredSpan&) const = default;
};

// One for each entry; of logs with more entries than `columns`, one for as many neighbours as
// fill a column of that many. `log` must be valid for the plan of `walk`.
std::vector<MeasuredSpan> measured_spans(const Walk& walk, const RunLog& log, size_t columns);

}  // namespace reprise::report
