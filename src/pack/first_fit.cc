// Greedy placement by a list of priorities, and local search over the list.
//
// Y. Pisarchyk, J. Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (arXiv
// 2001.03288): greedy by size into the lowest gap. The other orders are those of the bin packing literature.
// The local search is that of list scheduling: what came out too high gets a higher priority.
//
// | paper                     | here                               |
// |---------------------------|------------------------------------|
// | tensor usage interval     | Item::first .. Item::last          |
// | tensor size               | Item::size                         |
// | greedy by size            | the order "first fit by size"      |
//
// Complexity: the placed items are kept by offset and looked through from below until a gap is found:
// O(n) an item, most of the time far less. Assumption: none; any order gives a packing, and for
// some order the packing is a lowest one (that of the offsets of a lowest packing).
//
// Tests: unit/pack_test.cc, property/pack_property_test.cc.
#include "pack/first_fit.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

namespace reprise::internal {

Solution FirstFit::place(const std::vector<int32_t>& order) {
  Solution solution;
  solution.offsets.assign(part_.items.size(), 0);
  solution.height = 0;
  placed_.clear();
  placed_.reserve(order.size());
  for (const int32_t number : order) {
    const Item& item = part_.items[number];
    int64_t offset = 0;
    size_t at = 0;
    for (; at < placed_.size(); ++at) {
      const Placed& other = placed_[at];
      if (other.offset >= offset + item.size) break;
      if (other.first <= item.last && item.first <= other.last) {
        offset = std::max(offset, other.top);
      }
    }
    steps_ += static_cast<int64_t>(at) + 1;
    const Placed placed{offset, offset + item.size, item.first, item.last};
    const auto above =
        std::upper_bound(placed_.begin(), placed_.end(), offset,
                         [](int64_t value, const Placed& other) { return value < other.offset; });
    placed_.insert(above, placed);
    solution.offsets[number] = offset;
    solution.height = std::max(solution.height, placed.top);
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
  // As floating point: the product may not fit 64 bits, and its last digits do not matter.
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

void repair_order(const Part& part, int64_t goal, int64_t patience, Effort& effort,
                  Solution& best) {
  FirstFit fit(part);
  std::mt19937_64 random(1);
  const size_t count = part.items.size();
  // Sorted by offset, first fit gives the same packing or a lower one.
  std::vector<int32_t> order(count), trial;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return best.offsets[a] < best.offsets[b]; });
  Solution now = fit.place(order);
  int64_t height_now = now.height;
  for (int64_t failures = 0; failures < patience && best.height > goal && effort.spend(1);) {
    trial = order;
    // One of the items that are too high goes before one of those that it overlaps, or to a random
    // place before its own.
    std::vector<size_t> high;
    for (size_t k = 0; k < count; ++k) {
      const int32_t item = trial[k];
      if (now.offsets[item] + part.items[item].size > std::max(goal, height_now - 1)) {
        high.push_back(k);
      }
    }
    const size_t from = high[random() % high.size()];
    const Item& moved = part.items[trial[from]];
    std::vector<size_t> targets;
    for (size_t k = 0; k < from; ++k) {
      const Item& other = part.items[trial[k]];
      if (other.first <= moved.last && moved.first <= other.last) targets.push_back(k);
    }
    if (targets.empty()) break;
    const size_t to = targets[random() % targets.size()];
    std::rotate(trial.begin() + to, trial.begin() + from, trial.begin() + from + 1);
    if (random() % 4 == 0) {
      std::swap(trial[random() % count], trial[random() % count]);
    }
    const int64_t steps = fit.steps();
    Solution next = fit.place(trial);
    effort.spend(fit.steps() - steps);
    if (next.height <= height_now) {
      if (next.height < height_now) failures = 0;
      height_now = next.height;
      std::stable_sort(trial.begin(), trial.end(),
                       [&](int32_t a, int32_t b) { return next.offsets[a] < next.offsets[b]; });
      order.swap(trial);
      now = std::move(next);
      if (now.height < best.height) {
        best = now;
        best.method = "repair";
      }
    } else {
      ++failures;
    }
  }
}

}  // namespace reprise::internal
