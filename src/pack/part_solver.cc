#include "pack/part_solver.h"

#include <algorithm>
#include <array>
#include <utility>

#include "pack/exact_search.h"
#include "pack/first_fit.h"
#include "pack/skyline.h"

namespace reprise::internal {

namespace {

Style style_of(uint64_t trial) {
  constexpr std::array kBranchings = {Branching::kLongest, Branching::kLargestArea,
                                      Branching::kLargest, Branching::kRandom};
  return {kBranchings[trial / 2 % kBranchings.size()], trial % 2 == 1, trial};
}

}  // namespace

void PartSolver::consider(Solution solution, const char* method) {
  if (solution.height >= best_.height) return;
  best_ = std::move(solution);
  best_.method = method;
}

void PartSolver::construct(int64_t goal) {
  goal = std::max(goal, low_);
  constexpr std::array kRules = {std::pair(SkylineRule::kLongest, "skyline"),
                                 std::pair(SkylineRule::kLargestArea, "skyline by area"),
                                 std::pair(SkylineRule::kLargest, "skyline by size")};
  for (const auto& [rule, name] : kRules) {
    consider(skyline(*part_, rule), name);
    if (best_.height <= goal) return;
  }
  FirstFit fit(*part_);
  for (const NamedOrder& named : first_fit_orders(*part_)) {
    consider(fit.place(named.order), named.name);
    if (best_.height <= goal) return;
  }
}

void PartSolver::improve(int64_t goal, int64_t steps, Effort& effort) {
  goal = std::max(goal, low_);
  if (best_.height <= goal) return;
  Effort some = effort.part(steps / 4);
  repair_order(*part_, goal, 300, some, best_);
  effort.spend(steps / 4 - std::max<int64_t>(0, some.left()));
  if (part_->items.size() > ExactSearch::kMostItems) return;
  search(goal, steps - steps / 4 + std::max<int64_t>(0, some.left()), effort);
}

// Halves what is open between what is proven impossible and the best height. A capacity that was not
// decided in its share of steps is put aside until all lower ones were, too; then the shares double.
void PartSolver::search(int64_t goal, int64_t steps, Effort& effort) {
  ExactSearch exact(*part_);
  uint64_t trial = 0;
  for (int64_t share = 100'000; steps > 0 && best_.height > std::max(goal, low_); share *= 2) {
    for (int64_t open = std::max(low_, goal); steps > 0 && open < best_.height;) {
      // The first trial is the bound itself: most often it can be reached.
      const int64_t capacity = trial == 0 ? open : open + (best_.height - 1 - open) / 2;
      const int64_t before = effort.left();
      const auto outcome = exact.run(capacity, style_of(trial), std::min(share, steps), effort);
      ++trial;
      steps -= before - effort.left();
      if (effort.left() <= 0) return;
      if (outcome == ExactSearch::Outcome::kFound) {
        Solution found;
        found.offsets = exact.offsets();
        found.height = 0;
        for (size_t k = 0; k < found.offsets.size(); ++k) {
          found.height = std::max(found.height, found.offsets[k] + part_->items[k].size);
        }
        consider(std::move(found), "exact search");
        continue;
      }
      if (outcome == ExactSearch::Outcome::kNone) low_ = std::max(low_, capacity + 1);
      open = capacity + 1;
    }
  }
}

}  // namespace reprise::internal
