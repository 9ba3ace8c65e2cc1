#include "reprise/model/frontier.h"

#include <algorithm>

namespace reprise {

Frontier thinned(const Frontier& frontier, size_t points) {
  const std::vector<FrontierPoint>& all = frontier.points;
  points = std::max<size_t>(points, 2);
  if (all.size() <= points) return frontier;
  Frontier thin = frontier;
  thin.points.clear();
  const auto slowest = static_cast<double>(all.front().time.count());
  const auto fastest = static_cast<double>(all.back().time.count());
  size_t next = 0;
  for (size_t k = 0; k < points; ++k) {
    // Take the first point that is as fast as wanted, but leave as many points as are still wanted.
    const double wanted =
        slowest + (fastest - slowest) * static_cast<double>(k) / static_cast<double>(points - 1);
    const size_t last = all.size() - (points - k);
    while (next<last&& static_cast<double>(all[next].time.count())> wanted) ++next;
    thin.points.push_back(all[k + 1 == points ? all.size() - 1 : next]);
    ++next;
  }
  return thin;
}

}  // namespace reprise
