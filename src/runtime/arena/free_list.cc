#include "runtime/arena/free_list.h"

#include <iterator>

namespace reprise::runtime::internal::arena {

std::optional<int64_t> FreeList::take(int64_t bytes) {
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < bytes) continue;
    if (best == free_.end() || range->second < best->second) best = range;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, size] = *best;
  free_.erase(best);
  if (size > bytes) free_[offset + bytes] = size - bytes;
  return offset;
}

void FreeList::give_back(int64_t offset, int64_t bytes) {
  auto range = free_.emplace(offset, bytes).first;
  if (range != free_.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == offset) {
      before->second += bytes;
      free_.erase(range);
      range = before;
    }
  }
  const auto after = std::next(range);
  if (after != free_.end() && range->first + range->second == after->first) {
    range->second += after->second;
    free_.erase(after);
  }
}

}  // namespace reprise::runtime::internal::arena
