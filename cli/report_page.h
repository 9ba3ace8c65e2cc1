// The page of `reprise report`, for every command that writes one.
#pragma once

#include <string>

#include "reprise/model/units.h"
#include "reprise/report/report.h"

namespace reprise::cli {

// report_html() with the curve of a chain worked out in about `curve_limit` (none: left out) unless there
// is one, and progress on a terminal.
std::string report_page(ReportInput& input, Nanos curve_limit, bool quiet);

inline constexpr Nanos kCurveLimit{3'000'000'000};

}  // namespace reprise::cli
