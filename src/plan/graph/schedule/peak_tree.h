// This is the largest of many numbers while ranges of them are raised and lowered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::internal::schedule {

// A PeakTree is a segment tree that adds up along the way up, instead of pushing sums down.
class PeakTree {
 public:
  // All numbers are `value`.
  PeakTree(size_t count, int64_t value) : size_(1) {
    while (size_ < count) size_ *= 2;
    largest_.assign(2 * size_, value);
    added_.assign(size_, 0);
    for (size_t k = count; k < size_; ++k) largest_[size_ + k] = INT64_MIN / 2;
    for (size_t k = size_ - 1; k > 0; --k) pull(k);
  }

  // Adds to the numbers first .. last. O(log count).
  void add(size_t first, size_t last, int64_t amount) {
    if (amount == 0) return;
    size_t low = first + size_, high = last + size_ + 1;
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) raise(low++, amount);
      if (high % 2 == 1) raise(--high, amount);
    }
    for (size_t k = (first + size_) / 2; k > 0; k /= 2) pull(k);
    for (size_t k = (last + size_) / 2; k > 0; k /= 2) pull(k);
  }

  int64_t largest() const { return largest_[1]; }

  // The sum of what the numbers are above a limit. O(log count) for each number above it.
  double excess(int64_t limit) const { return excess_below(1, limit); }

  // The first `count` numbers. O(count * log count).
  std::vector<int64_t> numbers(size_t count) const {
    std::vector<int64_t> all(largest_.begin() + static_cast<std::ptrdiff_t>(size_),
                             largest_.begin() + static_cast<std::ptrdiff_t>(size_ + count));
    for (size_t k = 0; k < count; ++k) {
      for (size_t node = (k + size_) / 2; node > 0; node /= 2) all[k] += added_[node];
    }
    return all;
  }

  // Returns the position of the first largest number. O(log count).
  size_t where() const {
    size_t k = 1;
    while (k < size_) k = largest_[2 * k] >= largest_[2 * k + 1] ? 2 * k : 2 * k + 1;
    return k - size_;
  }

 private:
  double excess_below(size_t node, int64_t limit) const {
    if (largest_[node] <= limit) return 0;
    if (node >= size_) return static_cast<double>(largest_[node] - limit);
    limit -= added_[node];
    return excess_below(2 * node, limit) + excess_below(2 * node + 1, limit);
  }
  void raise(size_t node, int64_t amount) {
    largest_[node] += amount;
    if (node < size_) added_[node] += amount;
  }
  void pull(size_t node) {
    largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]) + added_[node];
  }

  size_t size_;
  std::vector<int64_t> largest_;  // the largest number below a node, with what was added there
  std::vector<int64_t> added_;    // what was added to all numbers below a node
};

}  // namespace reprise::internal::schedule
