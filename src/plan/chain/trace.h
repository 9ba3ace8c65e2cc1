// trace() goes back from the values of the recurrence to a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "reprise/model/plan.h"

namespace reprise::internal::chain {

// Returns the value of the cell in this slot with this memory, or kInfeasible.
using CellCost = std::function<int64_t(size_t slot, int64_t memory)>;

struct Trace {
  std::vector<Run> runs;
  int64_t cost = 0;  // cost of these runs, in the units of ChainModel
};

// Goes down from the whole chain, and takes at each node the branch that is best by `cell_cost` and
// the costs of the branches, rounded down to multiples of `grid`. On a tie it takes the first
// branch. With the exact values, the plan costs exactly C(0, L, memory, 1). With a relaxation that
// is finite exactly where the cell is feasible, the plan is still feasible, and as good as the
// relaxation. Throws InternalError if no branch is feasible. O(L) values a node and at most 2 L
// nodes; no recursion.
Trace trace(const ChainModel& model, const ChainCells& cells, const CellCost& cell_cost,
            int64_t memory, int64_t grid = 1);

// Does the same for the segment of stages first..last, without the loss.
Trace trace_segment(const ChainModel& model, const ChainCells& cells, const CellCost& cell_cost,
                    size_t first, size_t last, bool pinned, int64_t memory);

}  // namespace reprise::internal::chain
