// anneal() is the local search of the planners of this room: simulated annealing (S. Kirkpatrick et
// al., Science 220, 1983) with a tolerance in place of a draw (threshold accepting: G. Dueck, T.
// Scheuer, J. Comput. Phys. 90, 1990). The planners differ in the changes that they propose.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <utility>

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

// A PlanCost orders plans in the making: fewer bytes above what memories hold, then less time, then
// fewer runs.
struct PlanCost {
  int64_t excess = 0;  // bytes
  int64_t time = 0;    // nanoseconds
  int64_t runs = 0;    // where they are counted

  bool fits() const { return excess == 0; }
  auto operator<=>(const PlanCost&) const = default;
};

// A Candidate is what a plan is made from, with what the plan costs.
template <class State>
struct Candidate {
  State state;
  PlanCost cost;

  bool operator<(const Candidate& other) const { return cost < other.cost; }
};

// WalkLimits end a walk. If the evaluations are done before the time is, equal arguments give
// equal results.
struct WalkLimits {
  int64_t evaluations = 0;        // plans to build
  double tolerance = 0;           // at first, in units of the walk; at last it is zero
  int64_t floor = 0;              // a time that no plan beats: the walk ends there
  uint64_t seed = 0;              // walks with different seeds go different ways
  bool again = true;              // false: nothing more is made again
  common::SearchControl control;  // of the time
  std::function<void()> report;   // is called at each look at the clock; may throw
};

// Takes a walk from plan to plan, each a change of the one before, and returns the best one of all.
// Moves have these members:
//
//   kBetweenLooks                      so many evaluations lie between two looks at the clock
//   double unit()                      of the tolerance: a change may cost so much more, in time
//   double price()                     the time that a byte above the budget counts for
//   bool propose()                     changes the plan; false if it is as it was
//   std::optional<PlanCost> judge(limit)   of the changed plan; nothing if it is no plan, or takes
//                                      longer than the limit
//   void keep()                        stays at the changed plan
//   void undo()                        goes back to the plan before the change
//   State state()                      the plan
//
// The clock sets the tolerance only where it is ahead of the evaluations by a share of the time. So
// a walk that ends before its time does not depend on it.
template <class Moves, class State>
Candidate<State> anneal(Moves& moves, Candidate<State> best, const WalkLimits& limits) {
  constexpr double kHeadStart = 0.1;
  const double price = moves.price(), tolerance = limits.tolerance * moves.unit();
  const auto worth = [&](const PlanCost& cost) {
    return static_cast<double>(cost.time) + price * static_cast<double>(cost.excess);
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto evaluations = static_cast<double>(limits.evaluations);
  double clock = 0;
  PlanCost cost = best.cost;
  for (int64_t e = 0; e < limits.evaluations; ++e) {
    if (best.cost.fits() && best.cost.time <= limits.floor) break;
    if (e % Moves::kBetweenLooks == 0) {
      if (limits.control.out_of_time()) break;
      limits.report();
      clock = (limits.control.share_over(begin) - kHeadStart) / (1 - kHeadStart);
    }
    if (!moves.propose()) continue;
    const double left = 1 - std::max(clock, static_cast<double>(e) / evaluations);
    const double limit = worth(cost) + tolerance * left * left;
    const std::optional<PlanCost> changed =
        moves.judge(static_cast<int64_t>(std::min(limit, 9e18)));
    if (!changed || worth(*changed) > limit) {
      moves.undo();
      continue;
    }
    moves.keep();
    cost = *changed;
    if (cost < best.cost) best = {moves.state(), cost};
  }
  return best;
}

}  // namespace reprise::internal::place
