// A MeasuredSpan is a part of a run log, coarse enough to be drawn.
#pragma once

#include <vector>

#include "report/walk.h"
#include "reprise/model/runlog.h"

namespace reprise::report {

struct MeasuredSpan {
  double start = 0, end = 0;  // on the clock of the plan
  Bytes bytes;                // the most bytes of its entries
  Nanos planned, measured;    // sums over its entries

  bool operator==(const MeasuredSpan&) const = default;
};

// Returns one span for each entry. If the log has more entries than `columns`, a span stands for as
// many neighbours as fill a column. `log` must be valid for the plan of `walk`.
std::vector<MeasuredSpan> measured_spans(const Walk& walk, const RunLog& log, size_t columns);

}  // namespace reprise::report
