// A SlotGrid counts memory in slots, and defines where it is rounded.
//
// Every cell C(i,l,.,p) is known at the points m = k * unit + phase, k = 0..last(). A point is an
// exact number of bytes, and the recurrence tests it without rounding. Only an argument m - D that
// falls between two points of the other cell is rounded. kUp rounds D up and takes the next lower
// point: the cost found there can be had with less memory than there is, so it is an upper bound.
// kDown takes the next higher point and gives a lower bound. Each cell has a phase of its own, so
// that the most frequent arguments fall on points, where nothing is lost:
//
//   keeping stage i   D = s + x_{i+1} - u   phases differ by D: a run of kept stages, however long
//   left of x_j       D = W(j,l)            phases differ by D, where cells are not shared
//   right of x_j      D = x_j               rounded, once for all that the phases do not cover
//
// If cells are shared, the phase is a sum over the stages of the cell, because equal cells must
// have equal phases. Otherwise it is a sum over the stages from i to the end of the chain.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain/model.h"
#include "plan/chain_slots/divider.h"

namespace reprise::internal::chain_slots {

enum class Rounding { kUp, kDown };  // direction for the bytes that are taken

class SlotGrid {
 public:
  // Makes about `slots` points up to `memory`, the root's argument, which is a point itself. There
  // are fewer points if a slightly larger unit divides the sizes better.
  SlotGrid(const chain::ChainModel& model, int64_t memory, int64_t slots, Rounding rounding,
           bool shared);

  int64_t unit() const { return unit_.divisor(); }
  int32_t last() const { return last_; }
  // Returns whether no argument at all is rounded.
  bool exact() const { return exact_; }

  int64_t phase(size_t first, size_t last, bool pinned) const {
    const int64_t sum = from_[pinned][first] + to_[last];
    return sum < unit() ? sum : sum - unit();
  }
  // Returns the first point with at least this many bytes, or last() + 1 if there is none.
  int32_t first_point(int64_t bytes, int64_t phase) const;
  // Returns the last point with at most this many bytes, or -1 if there is none.
  int32_t point_below(int64_t bytes, int64_t phase) const;
  // Returns a shift: point k of one cell less `bytes` is, rounded, point k - shift of the other.
  int32_t shift(int64_t bytes, int64_t phase, int64_t other_phase) const {
    int64_t distance = bytes + other_phase - phase;
    if (rounding_ == Rounding::kUp) distance += unit() - 1;
    // The limit moves every point beyond one end; a larger shift makes no difference.
    const int64_t limit = unit() * (last_ + 1);
    return static_cast<int32_t>(unit_.floor(std::clamp(distance, -limit, limit)));
  }

 private:
  void place_phases(const chain::ChainModel& model, int64_t memory, bool shared);

  Rounding rounding_;
  Divider unit_{1};
  int32_t last_ = 0;
  bool exact_ = false;
  std::array<std::vector<int64_t>, 2> from_;  // by pinned, by first stage
  std::vector<int64_t> to_;                   // by last stage
};

}  // namespace reprise::internal::chain_slots
