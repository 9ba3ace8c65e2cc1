// These constants limit the work and the memory of the tables of a chain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "plan/chain/cells.h"
#include "plan/common/search_control.h"

namespace reprise::internal::chain {

// A search whose tables grow beyond this size ends, as if its time were over.
inline constexpr int64_t kTableLimit = int64_t{1} << 30;

// A thread is worth starting only for at least this many cells.
inline constexpr size_t kCellsForThread = 500;

inline int useful_threads(const ChainCells& cells, int threads) {
  return std::min(threads, static_cast<int>(cells.order().size() / kCellsForThread) + 1);
}

inline int64_t rounded_down(int64_t cost, int64_t grid) { return cost - cost % grid; }

// A cell with thousands of branches may take seconds. Patience looks at the clock now and then.
class Patience {
 public:
  explicit Patience(const common::SearchControl& control) : control_(control) {}
  bool is_over() { return ++asked_ % 64 == 0 && control_.out_of_time(); }

 private:
  const common::SearchControl& control_;
  int asked_ = 0;
};

}  // namespace reprise::internal::chain
