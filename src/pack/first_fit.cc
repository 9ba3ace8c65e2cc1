// This file places items greedily by a list of priorities.
//
// Y. Pisarchyk, J. Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (arXiv
// 2001.03288): greedy by size into the lowest hole. The other orders are those of bin packing.
//
// | paper                     | here                               |
// |---------------------------|------------------------------------|
// | tensor usage interval     | Item::first .. Item::last          |
// | tensor size               | Item::size                         |
// | greedy by size            | the order "first fit by size"      |
//
// Complexity: O(n) an item, most of the time far less. The placed items are kept by offset and read
// from below until a hole is found. A short item reads only the items of a window of time.
// Assumption: none. Any order gives a packing, and some order gives a lowest one: the order of the
// offsets of a lowest packing.
//
// Tests: unit/pack_test.cc, property/pack_property_test.cc.
#include "pack/first_fit.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace reprise::internal::packing {

PlacedItems::PlacedItems(int32_t sections, int32_t windows)
    : stride_(windows == 0 ? sections : sections / windows + 1),
      windows_(static_cast<size_t>(windows)) {}

void PlacedItems::clear() {
  all_.clear();
  for (List& window : windows_) window.clear();
}

// Returns a list that has every item which overlaps this one in time.
const PlacedItems::List& PlacedItems::list_for(const Item& item) const {
  const int32_t window = item.first / stride_;
  if (windows_.empty() || item.last >= (window + 2) * stride_) return all_;
  return windows_[window];
}

void PlacedItems::add(const Item& item, int64_t offset) {
  const auto insert = [&](List& list) {
    const auto above =
        std::upper_bound(list.begin(), list.end(), offset,
                         [](int64_t value, const Placed& other) { return value < other.offset; });
    list.insert(above, {offset, offset + item.size, item.first, item.last});
  };
  insert(all_);
  if (windows_.empty()) return;
  for (int32_t w = std::max(0, item.first / stride_ - 1); w <= item.last / stride_; ++w) {
    insert(windows_[w]);
  }
}

int64_t PlacedItems::add_lowest(const Item& item, int64_t& steps) {
  int64_t offset = 0;
  for (const Placed& other : list_for(item)) {
    if (other.offset >= offset + item.size) break;
    ++steps;
    if (other.first <= item.last && item.first <= other.last) offset = std::max(offset, other.top);
  }
  add(item, offset);
  return offset;
}

Solution first_fit(const Part& part, const std::vector<int32_t>& order) {
  Solution solution;
  solution.offsets.assign(part.items.size(), 0);
  solution.height = 0;
  PlacedItems placed(part.sections, part.items.size() < 500 ? 0 : 32);
  int64_t steps = 0;
  for (const int32_t number : order) {
    solution.offsets[number] = placed.add_lowest(part.items[number], steps);
    solution.height = std::max(solution.height, solution.offsets[number] + part.items[number].size);
  }
  return solution;
}

std::vector<NamedOrder> first_fit_orders(const Part& part) {
  std::vector<int32_t> numbers(part.items.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto sorted = [&](const auto& key) {
    std::vector<int32_t> order = numbers;
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return key(part.items[a]) < key(part.items[b]); });
    return order;
  };
  const auto span = [](const Item& item) { return item.last - item.first + 1; };
  // The area is a floating-point number: the product may not fit 64 bits, and its last digits do
  // not matter.
  const auto area = [&](const Item& item) {
    return static_cast<double>(item.size) * static_cast<double>(span(item));
  };
  return {
      {"first fit by size",
       sorted([&](const Item& i) { return std::tuple(-i.size, -span(i), i.first); })},
      {"first fit by area",
       sorted([&](const Item& i) { return std::tuple(-area(i), -i.size, i.first); })},
      {"first fit by lifetime",
       sorted([&](const Item& i) { return std::tuple(-span(i), -i.size, i.first); })},
      {"first fit by begin",
       sorted([&](const Item& i) { return std::tuple(i.first, -span(i), -i.size); })},
  };
}

}  // namespace reprise::internal::packing
