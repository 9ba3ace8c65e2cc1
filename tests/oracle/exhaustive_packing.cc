#include "oracle/exhaustive_packing.h"

#include <algorithm>
#include <cstddef>

namespace reprise::testing {
namespace {

bool clash(const Block& a, int64_t offset_a, const Block& b, int64_t offset_b) {
  const bool in_time = std::max(a.begin, b.begin) < std::min(a.end, b.end);
  const bool in_space = std::max(offset_a, offset_b) <
                        std::min(offset_a + a.bytes.count(), offset_b + b.bytes.count());
  return in_time && in_space;
}

// Tells whether blocks next, next + 1, ... can be placed within `height` beside those that are
// placed.
bool fits(const std::vector<Block>& blocks, std::vector<int64_t>& offsets, int64_t height) {
  const size_t next = offsets.size();
  if (next == blocks.size()) return true;
  const bool live = blocks[next].begin < blocks[next].end;
  const int64_t bytes = live ? blocks[next].bytes.count() : 0;
  for (int64_t offset = 0; offset + bytes <= height; ++offset) {
    bool free = true;
    for (size_t k = 0; k < next && free; ++k) {
      free = !clash(blocks[k], offsets[k], blocks[next], offset);
    }
    if (!free) continue;
    offsets.push_back(offset);
    if (fits(blocks, offsets, height)) return true;
    offsets.pop_back();
  }
  return false;
}

}  // namespace

int64_t least_height_of_any_packing(std::vector<Block> blocks) {
  // In order of time, the search meets a clash early.
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.begin < b.begin; });
  int64_t height = 0;
  for (const Block& at : blocks) {
    int64_t live = 0;
    for (const Block& block : blocks) {
      if (block.begin <= at.begin && at.begin < block.end) live += block.bytes.count();
    }
    height = std::max(height, live);
  }
  for (std::vector<int64_t> offsets; !fits(blocks, offsets, height); ++height) offsets.clear();
  return height;
}

}  // namespace reprise::testing
