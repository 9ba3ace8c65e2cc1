#include "report_page.h"

#include "output.h"

namespace reprise::cli {

std::string report_page(ReportInput& input, Nanos curve_limit, bool quiet) {
  StatusLine status(quiet);
  PlanOptions options;
  options.time_limit = curve_limit;
  options.observer = status.observer();
  if (curve_limit > Nanos(0)) add_curves(input, options);
  status.wipe();
  return report_html(input);
}

}  // namespace reprise::cli
