// Large neighbourhood search: P. Shaw, "Using Constraint Programming and Local Search Methods to
// Solve Vehicle Routing Problems", CP 1998. Here the neighbourhoods are windows of time, and first
// fit in changed orders completes them.
//
// | paper          | here                                                                        |
// |----------------|-----------------------------------------------------------------------------|
// | relatedness    | overlap with a window of sections around an item that is too high           |
// | removed visits | free_: items within the window, or a random share of them                   |
// | cost           | excess: by how much items are above the target, summed up                   |
//
// The target is a little below the best height, so that the search has a slope to go down. When the
// excess is 0, the target is the new best height.
//
// Complexity: O(n + m^2) a trial, where m items overlap the window.
//
// Tests: property/pack_property_test.cc.
#include "pack/repair.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "pack/first_fit.h"

namespace reprise::internal::packing {
namespace {

class Repair {
 public:
  Repair(const Part& part, int64_t goal, Effort& effort, Solution& best)
      : part_(part),
        goal_(goal),
        effort_(effort),
        best_(best),
        offsets_(best.offsets),
        placed_(part.sections) {}

  void run(int64_t patience) {
    set_target();
    for (int64_t failures = 0; best_.height > goal_ && effort_.left() > 0; ++failures) {
      if (high_.empty()) {
        best_.offsets = offsets_;
        best_.height = height();
        best_.method = "repair";
        set_target();
        failures = 0;
        continue;
      }
      if (failures > patience) return;
      if (trial(high_[random_() % high_.size()])) failures = 0;
    }
  }

 private:
  int64_t top(int32_t item) const { return offsets_[item] + part_.items[item].size; }
  int64_t excess(int32_t item) const { return std::max<int64_t>(0, top(item) - target_); }

  int64_t height() const {
    int64_t most = 0;
    for (size_t k = 0; k < offsets_.size(); ++k)
      most = std::max(most, top(static_cast<int32_t>(k)));
    return most;
  }

  void set_target() {
    target_ = best_.height - std::max<int64_t>(1, (best_.height - goal_) / 8);
    target_ = std::max(goal_, target_);
    find_high();
  }

  void find_high() {
    high_.clear();
    for (size_t k = 0; k < offsets_.size(); ++k) {
      if (excess(static_cast<int32_t>(k)) > 0) high_.push_back(static_cast<int32_t>(k));
    }
  }

  // Returns whether the excess fell. A trial that leaves the excess as it was is kept too, because
  // it may open a way.
  bool trial(int32_t item) {
    choose_free(item);
    int64_t before = 0, after = 0;
    before_.clear();
    for (const int32_t number : free_) {
      before += excess(number);
      before_.push_back(offsets_[number]);
    }
    reorder(item);
    int64_t steps = 0;
    for (const int32_t number : order_) {
      offsets_[number] = placed_.add_lowest(part_.items[number], steps);
      after += excess(number);
      if (after > before) break;
    }
    effort_.spend(steps);
    if (after > before) {
      for (size_t k = 0; k < free_.size(); ++k) offsets_[free_[k]] = before_[k];
      return false;
    }
    find_high();
    return after < before;
  }

  // Writes free_, and puts the other items that overlap the window into placed_.
  void choose_free(int32_t item) {
    const auto reach = static_cast<int32_t>(random_() % 4 == 0 ? random_() % 64 : random_() % 8);
    const int32_t first = part_.items[item].first - reach, last = part_.items[item].last + reach;
    const uint64_t share = random_() % 3;  // share of the items within the window: all, 1/2, 1/4
    free_.clear();
    fixed_.clear();
    for (size_t k = 0; k < part_.items.size(); ++k) {
      const Item& other = part_.items[k];
      if (other.first > last || other.last < first) continue;
      const auto number = static_cast<int32_t>(k);
      const bool may = other.within(first, last) && (random_() & ((uint64_t{1} << share) - 1)) == 0;
      if (number == item || may) {
        free_.push_back(number);
      } else {
        fixed_.push_back(number);
      }
    }
    std::sort(fixed_.begin(), fixed_.end(),
              [&](int32_t a, int32_t b) { return offsets_[a] < offsets_[b]; });
    placed_.clear();
    for (const int32_t number : fixed_) placed_.add(part_.items[number], offsets_[number]);
    effort_.spend(static_cast<int64_t>(part_.items.size() + 8 * fixed_.size()));
  }

  // Orders free_ by offset, or sometimes by size. Then moves the item to a random earlier place,
  // and swaps some others.
  void reorder(int32_t item) {
    order_ = free_;
    const bool by_size = random_() % 8 == 0;
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return by_size ? part_.items[a].size > part_.items[b].size : offsets_[a] < offsets_[b];
    });
    const auto at = std::find(order_.begin(), order_.end(), item);
    const auto to =
        order_.begin() +
        static_cast<std::ptrdiff_t>(random_() % static_cast<uint64_t>(at - order_.begin() + 1));
    std::rotate(to, at, at + 1);
    for (uint64_t swaps = random_() % 3; swaps > 0; --swaps) {
      std::swap(order_[random_() % order_.size()], order_[random_() % order_.size()]);
    }
  }

  const Part& part_;
  const int64_t goal_;
  Effort& effort_;
  Solution& best_;
  std::mt19937_64 random_{1};
  std::vector<int64_t> offsets_;
  int64_t target_ = 0;
  std::vector<int32_t> high_;  // items above the target
  std::vector<int32_t> free_, fixed_, order_;
  std::vector<int64_t> before_;  // offsets of free_ before the trial
  PlacedItems placed_;
};

}  // namespace

void repair(const Part& part, int64_t goal, int64_t patience, Effort& effort, Solution& best) {
  Repair(part, goal, effort, best).run(patience);
}

}  // namespace reprise::internal::packing
