#include "reprise/report/svg.h"

#include "report/frontier_picture.h"

namespace reprise {

std::string frontier_svg(const Frontier& frontier, const Baseline& baseline,
                         std::span<const FrontierPoint> periodic, const SvgOptions& options) {
  return report::frontier_picture(frontier, baseline, periodic, options, {});
}

}  // namespace reprise
