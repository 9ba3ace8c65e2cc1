// anneal() is the local search of the planners of this room: simulated annealing (S. Kirkpatrick et
// al., Science 220, 1983) with a tolerance in place of a draw (threshold accepting: G. Dueck, T.
// Scheuer, J. Comput. Phys. 90, 1990). The planners differ in the changes that they propose.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

#include "plan/common/search_control.h"

namespace reprise::internal::place {

// A Random draws numbers. Equal seeds give equal numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : draws_(seed) {}

  size_t below(size_t count) { return static_cast<size_t>(draws_() % count); }
  double unit() { return static_cast<double>(draws_() >> 11) * 0x1p-53; }  // at least 0, below 1

 private:
  std::mt19937_64 draws_;
};

struct Course {
  int64_t evaluations = 0;
  double tolerance = 0;        // at first: by so much a change may cost more; at last by nothing
  int64_t between_looks = 16;  // at the clock: so many evaluations
};

// Takes a walk from plan to plan, each a change of the one before. A Walk has these members:
//
//   double cost()                        of the plan
//   bool done()                          whether nothing is left to find
//   bool propose()                       changes the plan; false if it is as it was
//   std::optional<double> judge(limit)   the cost of the changed plan; nothing if it is no plan, or
//                                        costs more than the limit
//   void keep()                          stays at the changed plan
//   void undo()                          goes back to the plan before the change
//
// The walk ends with the time of `control`. `report` is called at each look at the clock, and may
// throw. The clock sets the tolerance only where it is ahead of the evaluations by a share of the
// time. So a walk that ends before its time does not depend on it.
template <class Walk, class Report>
void anneal(Walk& walk, const Course& course, const common::SearchControl& control,
            const Report& report) {
  constexpr double kHeadStart = 0.1;
  const auto begin = std::chrono::steady_clock::now();
  double clock = 0;
  for (int64_t e = 0; e < course.evaluations && !walk.done(); ++e) {
    if (e % course.between_looks == 0) {
      if (control.out_of_time()) return;
      report();
      clock = (control.share_over(begin) - kHeadStart) / (1 - kHeadStart);
    }
    if (!walk.propose()) continue;
    const double left =
        1 - std::max(clock, static_cast<double>(e) / static_cast<double>(course.evaluations));
    const double limit = walk.cost() + course.tolerance * left * left;
    const std::optional<double> changed = walk.judge(limit);
    if (changed && *changed <= limit) {
      walk.keep();
    } else {
      walk.undo();
    }
  }
}

}  // namespace reprise::internal::place
