// What everything around a segment costs, in the plans of the whole chain that have it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plan/chain/branches.h"
#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "plan/common/search_control.h"
#include "plan/chain/cost_curve.h"
#include "reprise/model/units.h"

namespace reprise::internal::chain {

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
               int64_t cost, common::SearchControl& control);

  bool complete() const { return complete_; }
  bool too_large() const;
  Bytes memory() const { return Bytes(bytes_); }
  size_t needed_cells() const { return needed_cells_; }

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
  void weigh(CurveView offers, Scratch& scratch) const;
  void collect(const Branch& branch, CurveView offers, bool weighed, Scratch& scratch) const;
  void add_offers(int64_t slot, const CostCurve& points, Scratch& scratch);

  const ChainModel& model_;
  const ChainCells& cells_;
  const common::SearchControl& control_;
  const CurveTable* table_;  // only while this is made
  int64_t limit_;
  // A plan that leaves m bytes is a step at -m: less left is an easier demand.
  std::vector<CostCurve> offers_;
  std::array<std::mutex, 64> locks_;  // of offers_, by slot
  std::atomic<int64_t> bytes_ = 0;
  std::atomic<size_t> needed_cells_ = 0;
  bool complete_ = false;
};

}  // namespace reprise::internal::chain
