#include "pack/ranges.h"

#include <algorithm>
#include <iterator>

namespace reprise::internal::packing {

void Ranges::add(Range range) {
  if (range.begin >= range.end) return;
  auto next = end_of_.lower_bound(range.begin);
  if (next != end_of_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= range.begin) next = before;
  }
  while (next != end_of_.end() && next->first <= range.end) {
    range = {std::min(range.begin, next->first), std::max(range.end, next->second)};
    next = end_of_.erase(next);
  }
  end_of_.emplace(range.begin, range.end);
}

std::vector<Range> Ranges::remove(Range range) {
  std::vector<Range> removed;
  auto next = end_of_.upper_bound(range.begin);
  if (next != end_of_.begin()) --next;
  while (next != end_of_.end() && next->first < range.end) {
    const Range whole{next->first, next->second};
    const Range common{std::max(whole.begin, range.begin), std::min(whole.end, range.end)};
    if (common.begin >= common.end) {
      ++next;
      continue;
    }
    removed.push_back(common);
    next = end_of_.erase(next);
    if (whole.begin < common.begin) end_of_.emplace(whole.begin, common.begin);
    if (common.end < whole.end) next = end_of_.emplace(common.end, whole.end).first;
  }
  return removed;
}

bool Ranges::contains(Range range) const {
  auto after = end_of_.upper_bound(range.begin);
  return after != end_of_.begin() && std::prev(after)->second >= range.end;
}

Range Ranges::best_fit(int64_t size) const {
  Range best;
  for (const auto& [begin, end] : end_of_) {
    const Range range{begin, end};
    if (range.size() >= size && (best.size() == 0 || range.size() < best.size())) best = range;
  }
  return best;
}

std::vector<Range> Ranges::all() const {
  std::vector<Range> all;
  for (const auto& [begin, end] : end_of_) all.push_back({begin, end});
  return all;
}

}  // namespace reprise::internal::packing
