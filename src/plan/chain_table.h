// The tables of the persistent recurrence: the smallest memory of every segment, and what every
// segment costs as a function of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain_cells.h"
#include "plan/chain_model.h"
#include "plan/search_control.h"
#include "plan/step_function.h"
#include "reprise/model/units.h"

namespace reprise::internal {

// The cost of sweeping from x_i to x_j as a function of memory beyond g_{l+1}: S(i,j) and its
// tests. One step where every stage on the way has one way to be swept.
class Sweep {
 public:
  Sweep(const ChainModel& model, size_t first)
      : model_(model), first_(first), end_(first), steps_{{0, 0}} {}

  void extend();  // by one stage
  size_t end() const { return end_; }
  const StepFunction& steps() const { return steps_; }
  int64_t smallest_memory() const { return steps_.front().memory; }

 private:
  const ChainModel& model_;
  size_t first_;
  size_t end_;
  StepFunction steps_;
};

// The smallest m at which each cell is feasible, by slot. Exact: every argument of the recurrence
// is a shift of m, so feasibility has a recurrence of its own. O(L) a cell.
std::vector<int64_t> smallest_memory(const ChainModel& model, const ChainCells& cells);

struct CurveLimits {
  int64_t memory = kInfeasible;  // bytes beyond fixed and x_0 that a plan may use
  int64_t cost = kInfeasible;    // of the best plan known: dearer steps are of no use
  int64_t trim = 0;              // > 0: leave out steps that save less; costs become upper bounds
};

class CurveTable {
 public:
  // Computes every cell within the limits. Stops early when the control says so, or when the tables
  // outgrow the limit on their size; complete() tells.
  CurveTable(const ChainModel& model, const ChainCells& cells, const CurveLimits& limits,
             SearchControl& control);

  bool complete() const { return complete_; }
  Steps curve(size_t slot) const { return curves_[slot]; }
  Bytes memory() const { return Bytes(bytes_); }

 private:
  void compute(const Cell& cell);
  void keep(const Cell& cell);
  void checkpoint(const Cell& cell);

  const ChainModel& model_;
  const ChainCells& cells_;
  CurveLimits limits_;
  std::vector<StepFunction> curves_;
  Envelope envelope_;
  int64_t bytes_ = 0;
  bool complete_ = false;
};

}  // namespace reprise::internal
