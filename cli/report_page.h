// report_page() makes the page of `reprise report`, for every command that writes one.
#pragma once

#include <string>

#include "reprise/model/units.h"
#include "reprise/report/report.h"

namespace reprise::cli {

// Returns report_html() and shows progress on a terminal. If the problem is a chain and the input
// has no curve, the function first computes the curve in about `curve_limit`. A limit of 0 leaves
// the curve out.
std::string report_page(ReportInput& input, Nanos curve_limit, bool quiet);

inline constexpr Nanos kCurveLimit{3'000'000'000};

}  // namespace reprise::cli
