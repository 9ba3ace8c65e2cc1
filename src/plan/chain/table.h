// This header has the tables of a chain's recurrence: the smallest memory of every segment, and the
// cost of every segment as a function of memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain/bound.h"
#include "plan/chain/branches.h"
#include "plan/chain/cells.h"
#include "plan/chain/cost_curve.h"
#include "plan/chain/model.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::chain {

// Returns the smallest m at which each cell is feasible, by slot. The numbers are exact: every
// argument of the recurrence is a shift of m, so feasibility has a recurrence of its own. O(L) a
// cell. Returns an empty list if the control said stop.
std::vector<int64_t> smallest_memory(const ChainModel& model, const ChainCells& cells, int threads,
                                     common::SearchControl& control);

class Surroundings;  // chain/surroundings.h

struct CurveLimits {
  int64_t memory = kInfeasible;  // bytes beyond fixed and x_0 that a plan may use
  int64_t cost = kInfeasible;    // cost of the best known plan: no dearer plan is wanted
  // Every cost of a branch is rounded down to a multiple of this number, so the curves are lower
  // bounds with fewer steps. Memory stays exact, so the plan behind a curve is feasible all the
  // same.
  int64_t grid = 1;
  // Both limits belong to the same memory. Cells and steps that no plan within `cost` has are left
  // out.
  const LossBound* bound = nullptr;
  const Surroundings* around = nullptr;
  int threads = 1;
};

// A Portion is a share of the branches of a cell: every `of`-th branch, from `number` on.
struct Portion {
  size_t cell = 0;  // in ChainCells::order()
  int number = 0;
  int of = 1;
};

class CurveTable {
 public:
  // Computes every cell within the limits. Stops early if the control says so, or if the tables
  // outgrow the limit on their size. complete() tells whether all cells were computed.
  CurveTable(const ChainModel& model, const ChainCells& cells, const CurveLimits& limits,
             common::SearchControl& control);

  bool complete() const { return complete_; }
  const CurveLimits& limits() const { return limits_; }
  CurveView curve(size_t slot) const { return curves_[slot]; }
  Bytes memory() const { return Bytes(bytes_); }
  // Returns the least weight (LossBound) of a step of the branch, for a cell that ends with the
  // loss. A bound must be given, and the branch must have a right part.
  LossBound::Wide least_weight_of(const Branch& branch) const;
  size_t cells() const { return used_; }  // cells that a plan within the limits may have

 private:
  CostCurve compute(const Cell& cell, const Portion& portion, Envelope& envelope) const;
  bool set_caps(const Cell& cell, int64_t least_memory, Envelope& envelope) const;
  int64_t least_around(const Cell& cell, int64_t memory) const;
  void prune(const Cell& cell, CostCurve& curve) const;
  void weigh(const Cell& cell, const CostCurve& curve);
  size_t weight_index(size_t first, int64_t slot) const {
    return 2 * first + static_cast<size_t>(slot) - cells_.slot(first, model_.stages, false);
  }

  const ChainModel& model_;
  const ChainCells& cells_;
  const common::SearchControl& control_;
  LeastMemory least_memory_;
  CurveLimits limits_;
  std::vector<CostCurve> curves_;
  // The least weights of the cells that end with the loss, by first stage and pin.
  std::vector<LossBound::Wide> least_weights_;
  std::atomic<int64_t> bytes_ = 0;
  std::atomic<size_t> used_ = 0;
  bool complete_ = false;
};

}  // namespace reprise::internal::chain
