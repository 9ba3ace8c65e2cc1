// frontier_picture() draws the time/memory curve, for a file of its own and for the report.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "reprise/model/frontier.h"
#include "reprise/model/plan.h"
#include "reprise/report/svg.h"

namespace reprise::report {

// FrontierExtras lists additions to the picture of frontier_svg().
struct FrontierExtras {
  std::optional<FrontierPoint> chosen;  // a plan to mark
  bool bounds = false;                  // draws lower bounds that are below the times
  bool own_style = true;                // colours for a file; false: those of the page around it
};

// Draws as frontier_svg() does, with the same errors.
std::string frontier_picture(const Frontier& frontier, const Baseline& baseline,
                             std::span<const FrontierPoint> periodic, const SvgOptions& options,
                             const FrontierExtras& extras);

}  // namespace reprise::report
