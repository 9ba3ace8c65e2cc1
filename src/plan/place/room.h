// A Room says how many bytes of a memory are free at each position of a plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace reprise::internal::place {

class Room {
 public:
  Room() = default;
  explicit Room(std::vector<int64_t> free) : free_(std::move(free)) {}

  // Makes so many positions, each with as many free bytes. What was there before is forgotten.
  void assign(size_t positions, int64_t free) { free_.assign(positions, free); }
  void set(size_t position, int64_t free) { free_[position] = free; }

  // Takes bytes at the positions from `begin` to before `end`, if all of them have as many.
  bool take(size_t begin, size_t end, int64_t bytes) {
    const auto first = free_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = free_.begin() + static_cast<std::ptrdiff_t>(end);
    if (std::any_of(first, last, [&](int64_t free) { return free < bytes; })) return false;
    std::for_each(first, last, [&](int64_t& free) { free -= bytes; });
    return true;
  }

  // Takes bytes at the positions before `end`, one after the other and down to `least`, as long as
  // there are as many. Returns the first position where they are taken, or `end`.
  size_t take_before(size_t end, size_t least, int64_t bytes) {
    size_t at = end;
    while (at > least && free_[at - 1] >= bytes) --at;
    for (size_t k = at; k < end; ++k) free_[k] -= bytes;  // by itself, this is a fast loop
    return at;
  }

 private:
  std::vector<int64_t> free_;
};

}  // namespace reprise::internal::place
