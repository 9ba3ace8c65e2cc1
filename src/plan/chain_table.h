// The tables of a chain's recurrence: the smallest memory of every segment, what every segment
// costs as a function of memory, and what everything around it costs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plan/chain_bound.h"
#include "plan/chain_branches.h"
#include "plan/chain_cells.h"
#include "plan/chain_model.h"
#include "plan/search_control.h"
#include "plan/step_function.h"
#include "reprise/model/units.h"

namespace reprise::internal {

// The smallest m at which each cell is feasible, by slot. Exact: every argument of the recurrence
// is a shift of m, so feasibility has a recurrence of its own. O(L) a cell. Empty when the control
// said stop.
std::vector<int64_t> smallest_memory(const ChainModel& model, const ChainCells& cells, int threads,
                                     SearchControl& control);

class Surroundings;

struct CurveLimits {
  int64_t memory = kInfeasible;  // bytes beyond fixed and x_0 that a plan may use
  int64_t cost = kInfeasible;    // of the best plan known: dearer plans are of no use
  // Every cost of a branch is rounded down to a multiple of this: the curves are lower bounds, with
  // fewer steps. Memory stays exact, so that the plan behind a curve is feasible all the same.
  int64_t grid = 1;
  // Both for the same memory: cells and steps that no plan within `cost` has are left out.
  const LossBound* bound = nullptr;
  const Surroundings* around = nullptr;
  int threads = 1;
};

class CurveTable {
 public:
  // Computes every cell within the limits. Stops early when the control says so, or when the tables
  // outgrow the limit on their size; complete() tells.
  CurveTable(const ChainModel& model, const ChainCells& cells, const CurveLimits& limits,
             SearchControl& control);

  bool complete() const { return complete_; }
  const CurveLimits& limits() const { return limits_; }
  Steps curve(size_t slot) const { return curves_[slot]; }
  Bytes memory() const { return Bytes(bytes_); }

 private:
  StepFunction compute(const Cell& cell, Envelope& envelope) const;
  bool set_caps(const Cell& cell, int64_t least_memory, Envelope& envelope) const;
  int64_t least_around(const Cell& cell, int64_t memory) const;
  void prune(const Cell& cell, StepFunction& curve) const;

  const ChainModel& model_;
  const ChainCells& cells_;
  const SearchControl& control_;
  LeastMemory least_memory_;
  CurveLimits limits_;
  std::vector<StepFunction> curves_;
  std::atomic<int64_t> bytes_ = 0;
  bool complete_ = false;
};

// For every cell, what the rest of the plan costs when it leaves the cell at least so much memory:
// the least over all plans of the whole chain, within the limits of a table whose curves they are
// made of. With those curves lower bounds these are lower bounds, too. (The "outside" half of the
// inside-outside algorithm: Lari, Young, The estimation of stochastic context-free grammars using
// the inside-outside algorithm, Computer Speech and Language 4, 1990; used for pruning as in
// Charniak et al., Multilevel coarse-to-fine PCFG parsing, NAACL 2006.)
class Surroundings {
 public:
  // The table must be complete, with limits on memory and cost. Plans that cost more than `cost`
  // are left out.
  Surroundings(const ChainModel& model, const ChainCells& cells, const CurveTable& table,
               int64_t cost, SearchControl& control);

  bool complete() const { return complete_; }
  Bytes memory() const { return Bytes(bytes_); }

  // Whether any plan within the limits has the cell; then the most memory that one leaves it, and
  // the least that the rest costs.
  bool needed(size_t slot) const { return !offers_[slot].empty(); }
  int64_t most_memory(size_t slot) const { return -offers_[slot].front().memory; }
  int64_t least_cost(size_t slot) const { return offers_[slot].back().cost; }
  // The least that the rest costs when it leaves at least so much; kInfeasible if none does.
  int64_t cost_leaving(size_t slot, int64_t memory) const;

 private:
  struct Scratch;

  void offer_to_parts(const Cell& cell, Scratch& scratch);
  void collect(const Branch& branch, Steps offers, Scratch& scratch) const;
  void add_offers(int64_t slot, const StepFunction& points, Scratch& scratch);

  const ChainModel& model_;
  const ChainCells& cells_;
  const SearchControl& control_;
  const CurveTable* table_;  // only while this is made
  int64_t limit_;
  // A plan that leaves m bytes is a step at -m: less left is an easier demand.
  std::vector<StepFunction> offers_;
  std::array<std::mutex, 64> locks_;  // of offers_, by slot
  std::atomic<int64_t> bytes_ = 0;
  bool complete_ = false;
};

}  // namespace reprise::internal
