// Items placed one after the other, each as low as it goes.
#pragma once

#include <cstdint>
#include <vector>

#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

// Items that stand somewhere, by offset.
class PlacedItems {
 public:
  // With windows, an item that is short beside the sections looks only at what is near in time: worth it
  // from some hundred items on.
  explicit PlacedItems(int32_t sections, int32_t windows = 0);

  void clear();
  void add(const Item& item, int64_t offset);
  // Adds it at the lowest hole and returns the offset. `steps` grows by what was looked at.
  int64_t add_lowest(const Item& item, int64_t& steps);

 private:
  struct Placed {
    int64_t offset, top;
    int32_t first, last;
  };
  using List = std::vector<Placed>;

  const List& list_for(const Item& item) const;

  List all_;
  int32_t stride_;             // sections from one window to the next, which overlaps half of it
  std::vector<List> windows_;  // what overlaps each
};

// All items in this order. At worst O(n^2), n the items.
Solution first_fit(const Part& part, const std::vector<int32_t>& order);

// The orders that are worth a try, the best ones first: by size, by area (size times sections), by
// sections, by begin.
struct NamedOrder {
  const char* name;
  std::vector<int32_t> order;
};
std::vector<NamedOrder> first_fit_orders(const Part& part);

}  // namespace reprise::internal::packing
