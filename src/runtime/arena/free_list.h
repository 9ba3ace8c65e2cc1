// These are the free ranges of a block of memory, for requests that come in an order that nobody
// has planned.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace reprise::runtime::internal::arena {

// A FreeList hands out ranges of [0, bytes) by best fit: a request gets the smallest free range that is
// large enough, at its begin. Free ranges that touch are one range.
class FreeList {
 public:
  explicit FreeList(int64_t bytes) {
    if (bytes > 0) free_[0] = bytes;
  }

  // Returns the offset of a range, or nothing if no free range is large enough. `bytes` is positive.
  std::optional<int64_t> take(int64_t bytes);
  // Makes a range free that take() returned.
  void give_back(int64_t offset, int64_t bytes);

 private:
  std::map<int64_t, int64_t> free_;  // sizes by offset
};

}  // namespace reprise::runtime::internal::arena
