// This search finds the best plan of a chain in a given memory. It starts with quick plans of
// merged chains and a bound from one moment of the plan. Then it looks for plans that cost hardly
// more than the bound, and raises the limit if there are none. It looks in tables on ever finer
// grids of costs, each within the bounds of the one before. The last grid is exact.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "plan/chain/trace.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::chain {

// A Bracket holds what is known about the best plan. Costs are those of ChainModel.
struct Bracket {
  std::optional<Trace> best = {};  // the best plan known, if any
  int64_t lower = 0;               // no plan costs less
  bool exact = false;              // best costs `lower`, at the smallest peak of that cost
  Bytes memory = {};               // bytes of the largest tables

  // Returns whether no plan takes less time. A plan may still have fewer re-runs, or a smaller
  // peak.
  bool proven(const ChainModel& model) const {
    return best && model.time_of(lower) == model.time_of(best->cost);
  }
};

struct SearchSpace {
  const ChainModel& model;
  const ChainCells& cells;
  int threads = 1;

  size_t root() const { return cells.slot(0, model.stages, true); }
};

// Returns a feasible plan that keeps as much as it can, from the first stage on. `memory` must be
// at least the root's floor; the floors are those of smallest_memory().
Trace greedy(const SearchSpace& space, const std::vector<int64_t>& floors, int64_t memory);

// Returns the plan behind the root's value at this memory.
Trace traced(const SearchSpace& space, const CurveTable& table, int64_t memory);

// If a merged chain saves less than this share, shorter blocks are not worth their time for the
// chain itself.
inline constexpr double kWorthwhileGain = 0.01;

// Replaces bracket.best by cheaper plans of merged chains (chain/merge.h), ever longer ones, until
// one saves less than the share `gain`. Finds no plan if the chain has few stages, or if no merged
// chain fits into the memory.
void improve_by_blocks(const ChainModel& model, Schedules schedules, int64_t memory, double gain,
                       int threads, Bracket& bracket, common::SearchControl& control);

// CoarsePasses says whether bounds and passes on coarser grids come before the exact pass. The
// answer is the same.
enum class CoarsePasses { kWhereUseful, kAlways, kExactOnly };

struct Precision {
  double gap = 0;  // stop when best - lower is within this share of best
  CoarsePasses coarse_passes = CoarsePasses::kWhereUseful;
};

// Narrows the bracket until it is exact, its gap is small enough, or the control says stop.
// bracket.best must be set. It may be a plan of another space that this space contains; then only
// its cost is used.
void narrow(const SearchSpace& space, int64_t memory, const Precision& precision, Bracket& bracket,
            common::SearchControl& control);

}  // namespace reprise::internal::chain
