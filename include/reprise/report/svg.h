// frontier_svg() draws the time/memory curve as a self-contained SVG without scripts or fonts of
// its own. The picture stands on a light panel, so it can also be read in dark surroundings.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reprise/model/frontier.h"
#include "reprise/model/plan.h"
#include "reprise/report/compared.h"

namespace reprise {

struct SvgOptions {
  std::string title;  // empty: the problem's name
  int width = 760;    // pixels
  int height = 440;
  std::vector<Bytes> marks = {};  // budgets to point out, each with its time
  // Curves to compare with. Times far above those of the curve itself are outside of the picture.
  std::vector<ComparedCurve> compared = {};

  bool operator==(const SvgOptions&) const = default;
};

// Draws the best time of each budget as a step curve, and plain training as a point. If `periodic`
// is given, its points are drawn to compare with a simpler method; only their budgets and times are
// used. Throws InputError if the frontier has no point.
std::string frontier_svg(const Frontier& frontier, const Baseline& baseline,
                         std::span<const FrontierPoint> periodic = {},
                         const SvgOptions& options = {});

}  // namespace reprise
