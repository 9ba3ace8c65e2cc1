// The time/memory curve as a picture: a self-contained SVG without scripts or fonts of its own, on
// a light panel, so that it can be read in dark surroundings, too.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reprise/model/frontier.h"
#include "reprise/model/plan.h"

namespace reprise {

struct SvgOptions {
  std::string title;  // empty: the problem's name
  int width = 760;    // pixels
  int height = 440;
  std::vector<Bytes> marks = {};  // budgets to point out, each with the time that it has

  bool operator==(const SvgOptions&) const = default;
};

// The best time of each budget as a step curve, plain training as a point, and, where given, the
// points of a simpler method (`periodic`; only budget and time are used) to compare with.
// InputError if the frontier has no point.
std::string frontier_svg(const Frontier& frontier, const Baseline& baseline,
                         std::span<const FrontierPoint> periodic = {},
                         const SvgOptions& options = {});

}  // namespace reprise
