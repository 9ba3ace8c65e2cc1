// How much work and memory the tables of a chain may take, and how coarse their costs are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "plan/chain/cells.h"
#include "plan/common/search_control.h"

namespace reprise::internal::chain {

// Tables beyond this are given up like a search beyond its time.
inline constexpr int64_t kTableLimit = int64_t{1} << 30;

// Fewer cells than this a thread are not worth starting one.
inline constexpr size_t kCellsForThread = 500;

inline int useful_threads(const ChainCells& cells, int threads) {
  return std::min(threads, static_cast<int>(cells.order().size() / kCellsForThread) + 1);
}

inline int64_t rounded_down(int64_t cost, int64_t grid) { return cost - cost % grid; }

// A cell of thousands of branches may take seconds: looks at the clock now and then.
class Patience {
 public:
  explicit Patience(const common::SearchControl& control) : control_(control) {}
  bool is_over() { return ++asked_ % 64 == 0 && control_.out_of_time(); }

 private:
  const common::SearchControl& control_;
  int asked_ = 0;
};

}  // namespace reprise::internal::chain
