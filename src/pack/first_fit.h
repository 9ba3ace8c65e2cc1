// Items placed one after the other, each as low as it goes.
#pragma once

#include <cstdint>
#include <vector>

#include "pack/effort.h"
#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal {

class FirstFit {
 public:
  explicit FirstFit(const Part& part) : part_(part) {}

  // Places all items in this order. At worst O(n^2), n the items.
  Solution place(const std::vector<int32_t>& order);

  int64_t steps() const { return steps_; }  // of all placements so far

 private:
  struct Placed {
    int64_t offset, top;
    int32_t first, last;
  };

  const Part& part_;
  std::vector<Placed> placed_;  // by offset
  int64_t steps_ = 0;
};

// The orders that are worth a try, the best ones first: by size, by area (size times sections), by
// sections, by begin.
struct NamedOrder {
  const char* name;
  std::vector<int32_t> order;
};
std::vector<NamedOrder> first_fit_orders(const Part& part);

// Local search over orders: items at the top are put before what they stand on. Ends at `goal`, when
// `patience` orders in a row were no better, or when the effort is spent. Improves `best`.
void repair_order(const Part& part, int64_t goal, int64_t patience, Effort& effort, Solution& best);

}  // namespace reprise::internal
