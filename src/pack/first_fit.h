// First fit places items one after the other, each as low as possible.
#pragma once

#include <cstdint>
#include <vector>

#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

// PlacedItems keeps the items that have a place, by offset.
class PlacedItems {
 public:
  // With windows, an item that is short beside the sections reads only the items that are near in
  // time. Windows pay from some hundred items on.
  explicit PlacedItems(int32_t sections, int32_t windows = 0);

  void clear();
  void add(const Item& item, int64_t offset);
  // Adds the item in the lowest hole and returns its offset. `steps` grows by the number of items
  // that were read.
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
  std::vector<List> windows_;  // items that overlap each window
};

// Places all items in this order. O(n^2) at worst, for n items.
Solution first_fit(const Part& part, const std::vector<int32_t>& order);

// Returns the orders that are worth a try, the best ones first: by size, by area (size times
// sections), by sections, by begin.
struct NamedOrder {
  const char* name;
  std::vector<int32_t> order;
};
std::vector<NamedOrder> first_fit_orders(const Part& part);

}  // namespace reprise::internal::packing
