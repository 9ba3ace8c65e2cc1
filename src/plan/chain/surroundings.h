// Surroundings holds the cost of everything around a segment, in the plans of the whole chain that
// have the segment.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plan/chain/branches.h"
#include "plan/chain/cells.h"
#include "plan/chain/cost_curve.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::chain {

// For every cell, this class knows the least cost of the rest of a plan that leaves the cell at
// least a given memory. The minimum is over all plans of the whole chain within the limits of the
// table whose curves are used. If those curves are lower bounds, so are these costs. (This is the
// "outside" half of the inside-outside algorithm: Lari, Young, The estimation of stochastic
// context-free grammars using the inside-outside algorithm, Computer Speech and Language 4, 1990.
// It is used for pruning as in Charniak et al., Multilevel coarse-to-fine PCFG parsing, NAACL
// 2006.)
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

  // needed() says whether any plan within the limits has the cell. The next two functions return
  // the most memory that such a plan leaves the cell, and the least cost of the rest.
  bool needed(size_t slot) const { return !offers_[slot].empty(); }
  int64_t most_memory(size_t slot) const { return -offers_[slot].front().memory; }
  int64_t least_cost(size_t slot) const { return offers_[slot].back().cost; }
  // Returns the least cost of the rest of a plan that leaves at least this memory, or kInfeasible
  // if no plan does.
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
  const CurveTable* table_;  // used only while this object is made
  int64_t limit_;
  // A plan that leaves m bytes is a step at -m, because leaving fewer bytes is an easier demand.
  std::vector<CostCurve> offers_;
  std::array<std::mutex, 64> locks_;  // of offers_, by slot
  std::atomic<int64_t> bytes_ = 0;
  std::atomic<size_t> needed_cells_ = 0;
  bool complete_ = false;
};

}  // namespace reprise::internal::chain
