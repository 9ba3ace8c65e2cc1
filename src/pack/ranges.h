// Ranges is a set of integers, kept as disjoint ranges.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace reprise::internal::packing {

struct Range {
  int64_t begin = 0, end = 0;  // begin <= x < end

  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

class Ranges {
 public:
  void add(Range range);                   // joins the range with its neighbours
  std::vector<Range> remove(Range range);  // returns the ranges that were there
  bool contains(Range range) const;
  // Returns the smallest range of at least `size` integers, or an empty range if there is none.
  Range best_fit(int64_t size) const;
  std::vector<Range> all() const;  // ascending

 private:
  std::map<int64_t, int64_t> end_of_;  // by begin
};

}  // namespace reprise::internal::packing
