#include "pack/part_solver.h"

#include <algorithm>
#include <array>
#include <utility>

#include "pack/exact_search.h"
#include "pack/first_fit.h"
#include "pack/repair.h"
#include "pack/skyline.h"

namespace reprise::internal::packing {

namespace {

constexpr int64_t kPatience = 3000;       // trials of repair, or as many as items
constexpr int64_t kFirstShare = 100'000;  // steps of one exact search

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
  for (const NamedOrder& named : first_fit_orders(*part_)) {
    consider(first_fit(*part_, named.order), named.name);
    if (best_.height <= goal) return;
  }
}

void PartSolver::improve(int64_t goal, int64_t steps, Effort& effort) {
  goal = std::max(goal, low_);
  if (best_.height <= goal) return;
  const bool searchable = part_->items.size() <= ExactSearch::kMostItems;
  ExactSearch exact(*part_);
  const int64_t end = effort.left() - steps;
  // The bound itself can be reached most often, and then quickly.
  for (uint64_t number = 0; searchable && number < 2 && low_ <= goal; ++number) {
    if (decide(exact, goal, number, std::max(kFirstShare, steps / 128), effort) ==
        ExactSearch::SearchEnd::kFound)
      return;
  }
  goal = std::max(goal, low_);
  Effort some = effort.part(searchable ? steps / 4 : steps);
  const int64_t given = some.left();
  const auto patience = std::max(kPatience, static_cast<int64_t>(part_->items.size()));
  repair(*part_, goal, patience, some, best_);
  effort.spend(given - some.left());
  if (searchable) search(exact, goal, end, effort);
}

// Decides whether the part fits into the capacity. Keeps the packing if there is one, and the proof
// if there is none.
ExactSearch::SearchEnd PartSolver::decide(ExactSearch& exact, int64_t capacity, uint64_t trial,
                                          int64_t steps, Effort& effort) {
  const auto outcome = exact.run(capacity, style_of(trial), steps, effort);
  if (outcome == ExactSearch::SearchEnd::kNone) low_ = std::max(low_, capacity + 1);
  if (outcome != ExactSearch::SearchEnd::kFound) return outcome;
  Solution found;
  found.offsets = exact.offsets();
  found.height = 0;
  for (size_t k = 0; k < found.offsets.size(); ++k) {
    found.height = std::max(found.height, found.offsets[k] + part_->items[k].size);
  }
  consider(std::move(found), "exact search");
  return outcome;
}

// Halves the range between the heights that are proven impossible and the best height. A capacity
// that was not decided in its share of steps is put aside until all higher ones were tried; then
// the shares double. Ends when the effort has `end` left.
void PartSolver::search(ExactSearch& exact, int64_t goal, int64_t end, Effort& effort) {
  uint64_t trial = 2;
  for (int64_t share = kFirstShare; best_.height > std::max(goal, low_); share *= 2) {
    for (int64_t open = std::max(low_, goal); open < best_.height; ++trial) {
      const int64_t steps = std::min(share, effort.left() - end);
      if (steps <= 0) return;
      const int64_t capacity = open + (best_.height - 1 - open) / 2;
      const auto outcome = decide(exact, capacity, trial, steps, effort);
      if (outcome != ExactSearch::SearchEnd::kFound) open = capacity + 1;
    }
  }
}

}  // namespace reprise::internal::packing
