// Which cells C(i,l,.,p) a chain needs, and which of them are equal. Two segments with equal
// stages, equal first boundary and equal pinning have the same cell: it is stored and computed
// once, so a chain of repeated blocks has O(L * block) cells instead of O(L^2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain_model.h"

namespace reprise::internal {

// The segment of stages first..last (last = L: and the loss).
struct Cell {
  int32_t first = 0;
  int32_t last = 0;
  int32_t slot = 0;
  bool pinned = false;
};

class ChainCells {
 public:
  // share = false keeps equal cells apart. O(L^2) time and memory.
  ChainCells(const ChainModel& model, bool share);

  // Where the value of C(first, last, ., pinned) is kept.
  size_t slot(size_t first, size_t last, bool pinned) const {
    const auto base = static_cast<size_t>(classes_[row_[first] + last - first]) * 2;
    return base + (pinned && depends_on_pin_[first] ? 1 : 0);
  }
  size_t slots() const { return 2 * class_count_; }

  // One cell a slot, every cell after those that its recurrence reads.
  const std::vector<Cell>& order() const { return order_; }

 private:
  void classify(const ChainModel& model, bool share);
  void list_cells(const ChainModel& model);

  size_t class_count_ = 0;
  std::vector<size_t> row_;  // where row `first` begins in classes_
  std::vector<int32_t> classes_;
  std::vector<bool> depends_on_pin_;
  std::vector<Cell> order_;
};

}  // namespace reprise::internal
