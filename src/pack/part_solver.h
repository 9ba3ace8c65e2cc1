// A PartSolver tries all methods on one part, from the quick ones to the exact one.
#pragma once

#include <cstdint>

#include "pack/effort.h"
#include "pack/exact_search.h"
#include "pack/sections.h"
#include "pack/solution.h"

namespace reprise::internal::packing {

class PartSolver {
 public:
  explicit PartSolver(const Part& part) : part_(&part), low_(part.live()) {}

  // Tries the skylines, then first fit in several orders, until a packing is within `goal` units.
  void construct(int64_t goal);
  // Runs repair and exact search, until the height is within `goal` or proven least, or until the
  // effort has fallen by `steps`.
  void improve(int64_t goal, int64_t steps, Effort& effort);

  const Part& part() const { return *part_; }
  const Solution& best() const { return best_; }
  int64_t low() const { return low_; }  // no packing of the part is lower
  // Both heights include the part's base.
  int64_t top() const { return part_->base + best_.height; }

 private:
  void consider(Solution solution, const char* method);
  ExactSearch::SearchEnd decide(ExactSearch& exact, int64_t capacity, uint64_t trial, int64_t steps,
                                Effort& effort);
  void search(ExactSearch& exact, int64_t goal, int64_t end, Effort& effort);

  const Part* part_;
  Solution best_;
  int64_t low_;
};

}  // namespace reprise::internal::packing
