// partition() cuts a packing problem into parts that do not touch each other.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::internal::packing {

// An Item is a block of a part. Sizes are in units of the alignment. Times are sections: the
// maximal sets of blocks that are live at once, in order of time. Two blocks overlap in time if and
// only if they share a section.
struct Item {
  int64_t size = 0;
  int32_t first = 0, last = 0;  // sections, both included

  bool within(int32_t from, int32_t to) const { return from <= first && last <= to; }
  bool operator==(const Item&) const = default;
};

struct Part {
  std::vector<Item> items;
  std::vector<int32_t> blocks;  // by item: position of its block in the problem
  int32_t sections = 0;
  int64_t base = 0;  // units below the part that are taken throughout

  // Returns the most units that are live at once, without the base.
  int64_t live() const;
};

// An Interval is a block to be packed: it is live at some time and not empty.
struct Interval {
  int64_t size = 0;
  int64_t begin = 0, end = 0;
};

struct Partition {
  std::vector<Part> parts;       // each connected in time, no item spans all of it
  std::vector<int64_t> offsets;  // in units, for the blocks that are in no part
  int64_t height = 0;            // height of these blocks
};

// Some lowest packing of the whole consists of `offsets` and, for each part, of a lowest packing on
// the part's base. O(n log n + n * depth of nesting).
Partition partition(const std::vector<Interval>& intervals);

}  // namespace reprise::internal::packing
