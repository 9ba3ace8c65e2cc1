// The time/memory curve, for a file of its own and for the report.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "reprise/model/frontier.h"
#include "reprise/model/plan.h"
#include "reprise/report/svg.h"

namespace reprise::report {

// Beside what frontier_svg() shows.
struct FrontierExtras {
  std::optional<FrontierPoint> chosen;  // a plan
  bool bounds = false;                  // the lower bounds, where they are below the times
  bool own_style = true;                // colours for a file; without: those of the page around it
};

// As frontier_svg(), its errors too.
std::string frontier_picture(const Frontier& frontier, const Baseline& baseline,
                             std::span<const FrontierPoint> periodic, const SvgOptions& options,
                             const FrontierExtras& extras);

}  // namespace reprise::report
