// The search for the best plan of a chain in so much memory: quick plans of merged chains, a bound
// from one moment of the plan, then plans that cost hardly more than the bound, if need be ever
// more. They are looked for in tables on ever finer grids of costs, each within the bounds of the
// one before, until the last one is exact.
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

// What is known about the best plan. Costs are those of ChainModel.
struct Bracket {
  std::optional<Trace> best = {};  // the best plan known, if any
  int64_t lower = 0;               // no plan costs less
  bool exact = false;              // best costs `lower`, and has the smallest peak of all that do
  Bytes memory = {};               // of the largest tables

  // No plan takes less time, though one may have fewer re-runs, or a smaller peak.
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

// A feasible plan that keeps whatever it can, first things first. memory must be at least the
// root's floor; floors are smallest_memory().
Trace greedy(const SearchSpace& space, const std::vector<int64_t>& floors, int64_t memory);

// The plan behind the root's value at so much memory.
Trace traced(const SearchSpace& space, const CurveTable& table, int64_t memory);

// A merged chain that saves less than this share is no help for the chain itself.
inline constexpr double kWorthwhileGain = 0.01;

// Replaces bracket.best by cheaper plans of merged chains (chain/merge.h), ever longer ones until
// one saves less than the share `gain`. Finds none for chains of few stages, nor in too little
// memory for any merged chain.
void improve_by_blocks(const ChainModel& model, Dropping dropping, int64_t memory, double gain,
                       int threads, Bracket& bracket, common::SearchControl& control);

// Whether bounds and passes on coarser grids come before the exact one. The answer is the same.
enum class CoarsePasses { kWhereUseful, kAlways, kExactOnly };

struct Precision {
  double gap = 0;  // stop when best - lower is within this share of best
  CoarsePasses coarse_passes = CoarsePasses::kWhereUseful;
};

// Narrows the bracket until it is exact, its gap small enough, or the control says stop.
// bracket.best must be there; it may be a plan of another space that this one contains, of which
// only the cost is used.
void narrow(const SearchSpace& space, int64_t memory, const Precision& precision, Bracket& bracket,
            common::SearchControl& control);

}  // namespace reprise::internal::chain
