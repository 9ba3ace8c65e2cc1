#include "holes.h"

#include <algorithm>
#include <iterator>

namespace sim {

std::optional<size_t> Holes::take(size_t bytes) {
  auto best = holes_.end();
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->second >= bytes && (best == holes_.end() || hole->second < best->second)) best = hole;
  }
  if (best == holes_.end()) return std::nullopt;
  const auto [offset, size] = *best;
  holes_.erase(best);
  if (size > bytes) holes_.emplace(offset + bytes, size - bytes);
  return offset;
}

void Holes::give_back(size_t offset, size_t bytes) {
  const auto hole = holes_.emplace(offset, bytes).first;
  if (const auto after = std::next(hole); after != holes_.end() && offset + bytes == after->first) {
    hole->second += after->second;
    holes_.erase(after);
  }
  if (hole == holes_.begin()) return;
  if (const auto before = std::prev(hole); before->first + before->second == offset) {
    before->second += hole->second;
    holes_.erase(hole);
  }
}

size_t Holes::largest() const {
  size_t most = 0;
  for (const auto& [offset, bytes] : holes_) most = std::max(most, bytes);
  return most;
}

}  // namespace sim
