// ChainCells lists the cells that the recurrence of a chain needs, and knows which of them are
// equal. Two segments with equal stages, equal first boundary and equal pinning have the same cell.
// The cell is stored and computed once, so a chain of repeated blocks has O(L * block) cells
// instead of O(L^2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain/model.h"

namespace reprise::internal::chain {

// A cell is the segment of stages first..last; with last = L it includes the loss. With option < 0
// it is C, which begins with the forward of stage `first`. Otherwise it is D: the forward of stage
// `last` has already run with this option.
struct Cell {
  int32_t first = 0;
  int32_t last = 0;
  int32_t slot = 0;
  int16_t option = -1;
  bool pinned = false;

  size_t length() const { return static_cast<size_t>(last - first); }
};

// Each class of schedules contains the one before it.
enum class Schedules {
  kInputsOnly,     // A stage runs with what its backward needs only right before it, or before the loss.
  kPersistent,     // Stages may be kept, and what is kept stays until the backward.
  kDroppedInputs,  // The input of a kept stage may be dropped, and is then computed again.
};

class ChainCells {
 public:
  // share = false keeps equal cells apart. O(L^2) time and memory. If that is too much, complete()
  // is false, and the cells must not be used.
  ChainCells(const ChainModel& model, bool share, Schedules schedules = Schedules::kPersistent);
  // Shares the cells of the segments of at most `longest` stages that end before the loss, pinned
  // and not. O(L * longest * log) time and memory.
  ChainCells(const ChainModel& model, size_t longest);

  bool complete() const { return !order_.empty(); }
  Schedules schedules() const { return schedules_; }
  bool shared() const { return shared_; }  // whether a cell may stand for several segments

  // Returns the slot that keeps the value of a cell.
  size_t slot(size_t first, size_t last, bool pinned, int option = -1) const {
    const auto of_class = static_cast<size_t>(classes_[row_[first] + last - first]);
    const size_t pin = pinned && depends_on_pin_[first] ? 1 : 0;
    return base_[of_class] + 2 * static_cast<size_t>(option + 1) + pin;
  }
  size_t slots() const { return base_.back(); }

  // Lists one cell for each slot that is needed, shorter segments first: a cell depends on shorter
  // ones only.
  const std::vector<Cell>& order() const { return order_; }
  // Says where the cells of each length end in order().
  const std::vector<size_t>& length_ends() const { return length_ends_; }

 private:
  bool classify(const ChainModel& model, bool share);
  void list_cells(const ChainModel& model);
  void sort_by_length(size_t stages);

  size_t longest_ = 0;  // 0: segments may have any length, and the loss
  Schedules schedules_;
  bool shared_ = false;
  std::vector<size_t> row_;  // where row `first` begins in classes_
  std::vector<int32_t> classes_;
  std::vector<size_t> base_;  // the first slot of each class, and the number of slots
  std::vector<bool> depends_on_pin_;
  std::vector<Cell> order_;
  std::vector<size_t> length_ends_;
};

}  // namespace reprise::internal::chain
