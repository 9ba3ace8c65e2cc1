// for_each_branch() is the recurrence of a chain in one place: it lists all ways to begin a
// segment. All code that walks the recurrence uses it: the smallest memory, the curves, the
// surroundings of a cell, and the way back to a plan. The table in chain.cc explains the symbols.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/cost_curve.h"
#include "plan/chain/model.h"

namespace reprise::internal::chain {

// A Sweep is S(i,j) with its tests: the cost of sweeping from x_i to x_j, as a function of the
// memory beyond the held bytes. The function has one step if every stage on the way has one sweep
// variant.
class Sweep {
 public:
  // If x_first is freed as soon as its stage has run, `freed` has its bytes.
  Sweep(const ChainModel& model, size_t first, int64_t freed = 0)
      : model_(model), first_(first), end_(first), freed_(freed), steps_{{0, 0}} {}

  void extend();  // by one stage
  size_t end() const { return end_; }
  const CostCurve& steps() const { return steps_; }
  int64_t smallest_memory() const { return steps_.front().memory; }
  int64_t least_cost() const { return steps_.back().cost; }

 private:
  const ChainModel& model_;
  size_t first_;
  size_t end_;
  int64_t freed_;
  CostCurve steps_;
};

// Every cell needs at least this much memory, whatever branches it takes: every backward (and the
// loss) runs while the weight gradients of the stages behind it are live. O(1) a cell.
class LeastMemory {
 public:
  explicit LeastMemory(const ChainModel& model);

  int64_t of(const Cell& cell) const;

 private:
  int64_t largest(size_t first, size_t last) const;  // the largest of needs_[first..last]

  const ChainModel& model_;
  // [0][k] is what B_k needs beyond W(0,l), its input included. [n][k] is the largest of the 2^n
  // entries from k on.
  std::vector<std::vector<int64_t>> needs_;
};

enum class BranchKind {
  kLoss,        // runs the loss
  kKeep,        // keeps stage `at` with `option`, then runs the rest of the segment
  kCheckpoint,  // sweeps to x_at, runs the segment from there on, then the one before it
  kDrop,        // like kCheckpoint, but keeps stage `at` with `option` and drops x_at
  kReverse,     // the backward of a stage whose forward has run
};

// The branch is m -> cost + right(m - right_shift) + left(m - left_shift) for m >= from. The right
// part runs first. A slot is -1 if the branch has no such part.
struct Branch {
  BranchKind kind = BranchKind::kLoss;
  int64_t from = 0;
  int64_t cost = 0;
  int64_t right = -1;
  int64_t right_shift = 0;
  int64_t left = -1;
  int64_t left_shift = 0;
  size_t at = 0;
  size_t option = 0;
};

// Calls visit(branch) for all branches of the cell: first the branches that keep, then the others
// by length of the sweep. done(cost, memory) may stop the enumeration: all further branches cost at
// least `cost` and need at least `memory`.
template <class Visit, class Done>
void for_each_branch(const ChainModel& model, const ChainCells& cells, const Cell& cell,
                     const Visit& visit, const Done& done) {
  const auto i = static_cast<size_t>(cell.first), l = static_cast<size_t>(cell.last);
  if (i == model.stages) {
    visit(Branch{.kind = BranchKind::kLoss, .from = model.loss[cell.pinned]});
    return;
  }
  // The bytes that are held while the forwards of the segment run: g_{l+1}, or the package P.
  int64_t held = model.g[l + 1];
  if (cell.option >= 0) {
    const auto o = static_cast<size_t>(cell.option);
    held = model.package(l, model.options[l][o]);
    if (i == l) {
      visit(Branch{.kind = BranchKind::kReverse,
                   .from = std::max(held, model.options[l][o].backward),
                   .at = l,
                   .option = o});
      return;
    }
  }
  const auto slot = [&](size_t first, size_t last, bool pinned, int option) {
    return static_cast<int64_t>(cells.slot(first, last, pinned, option));
  };
  const bool may_keep =
      cells.schedules() != Schedules::kInputsOnly || i == l || i + 1 == model.stages;
  for (size_t o = 0; may_keep && o < model.options[i].size(); ++o) {
    const KeepOption& option = model.options[i][o];
    const int64_t u = model.given_back(i, option, cell.pinned);
    // The last stage of a segment ran before. Its backward comes next, so it may stop early.
    const int64_t forward = i < l ? option.forward : option.stopped_forward;
    Branch keep{
        .kind = BranchKind::kKeep,
        .from = std::max(held + forward, model.weights(i + 1, l) + option.backward - u),
        .cost = i < l ? option.cost : option.stopped_cost,
        .at = i,
        .option = o};
    if (i < l) {
      keep.right = slot(i + 1, l, option.reads_output, cell.option);
      keep.right_shift = option.saved + model.x[i + 1] - u;
    }
    visit(keep);
  }
  Sweep sweep(model, i);
  for (size_t j = i + 1; j <= l; ++j) {
    sweep.extend();
    if (done(sweep.least_cost(), held + sweep.smallest_memory())) return;
    for (const CurvePoint& step : sweep.steps()) {
      visit(Branch{.kind = BranchKind::kCheckpoint,
                   .from = held + step.memory,
                   .cost = step.cost,
                   .right = slot(j, l, false, cell.option),
                   .right_shift = model.x[j],
                   .left = slot(i, j - 1, cell.pinned, -1),
                   .left_shift = model.weights(j, l),
                   .at = j});
    }
    if (cells.schedules() != Schedules::kDroppedInputs || j == l) continue;
    for (size_t o = 0; o < model.options[j].size(); ++o) {
      const KeepOption& option = model.options[j][o];
      if (!option.reads_input) continue;
      for (const CurvePoint& step : sweep.steps()) {
        visit(Branch{.kind = BranchKind::kDrop,
                     .from = held + std::max(step.memory, model.x[j] + option.forward),
                     .cost = step.cost + option.cost,
                     .right = slot(j + 1, l, option.reads_output, cell.option),
                     .right_shift = option.saved + model.x[j + 1],
                     .left = slot(i, j, cell.pinned, static_cast<int>(o)),
                     .left_shift = model.weights(j + 1, l),
                     .at = j,
                     .option = o});
      }
    }
  }
}

}  // namespace reprise::internal::chain
