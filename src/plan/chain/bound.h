// LossBound bounds the cost of every plan of a chain in a given memory from below, and the cost of
// all plans that have a certain segment. It looks at one moment of a plan: the moment when the loss
// runs.
//
// All values that are live at this moment lie in memory together. A stage whose saved bytes are
// live has run forward once. Any other stage will run forward once more, and so will the stages on
// the way to it from the nearest live boundary. A cheapest set of boundaries and saved bytes to
// hold is a shortest path along the chain, except that the sum of their bytes is limited. The limit
// is priced (Lagrangian relaxation: Geoffrion, Lagrangean relaxation for integer programming,
// Mathematical Programming Study 2, 1974): a byte costs lambda, and
//
//   bound = max over lambda >= 0 of  min over paths of (cost + lambda * bytes) - lambda * memory.
//
// Numbers are exact: lambda is a fraction of integers, and sums have 128 bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/model.h"

namespace reprise::internal::chain {

class LossBound {
 public:
  using Wide = __int128;

  // `memory` counts the bytes beyond fixed and x_0. Schedules::kDroppedInputs covers plans that drop
  // inputs, too. O(L * options) time for each of some hundred values of lambda.
  LossBound(const ChainModel& model, Schedules schedules, int64_t memory);

  int64_t lower() const { return lower_; }  // a bound on the cost of every plan, never negative

  // Prepares around(cell) for cells that several segments share. O(segments).
  void tabulate(const ChainCells& cells);

  // Both functions bound the cost of everything that a plan with this cell does outside of the
  // cell, wherever the plan has it. Shared cells must have been tabulated. The second function is
  // for cells that end with the loss and have `memory` bytes.
  int64_t around(const Cell& cell) const;
  int64_t around(const Cell& cell, int64_t memory) const;

  // Returns cost + lambda * bytes, the weight. Weights bound sums of parts without a look at each
  // amount of memory: in a plan that costs at most `limit`, the segment from stage `first` to the
  // loss is a step of that cell's curve, and this step weighs at most most_weight().
  Wide weigh(int64_t cost, int64_t bytes) const;
  Wide most_weight(size_t first, int64_t limit) const;

 private:
  // A State is the state of a boundary while the loss runs: gone for good, gone but computed again
  // later, live.
  enum State { kGone, kAgain, kLive };
  struct Value {
    Wide price;  // cost * unit + lambda * bytes
    Wide bytes;  // bytes of the path with this price
  };
  using States = std::array<Value, 3>;

  int64_t boundary_bytes(size_t k) const;
  States after_stage(size_t k, const States& before) const;
  States before_stage(size_t k, const States& after) const;
  template <class Offer>
  void for_each_step(size_t k, const Offer& offer) const;
  template <class Offer>
  void for_each_option_step(size_t k, const KeepOption& option, const Offer& offer) const;
  Value shortest(Wide price);
  void tabulate_boundaries();
  Wide before(size_t first) const;
  Wide behind(size_t last, int option) const;

  const ChainModel& model_;
  Schedules schedules_;
  int64_t memory_;        // bytes of the boundaries and the saved values while the loss runs
  int64_t whole_memory_;  // bytes beyond fixed and x_0
  Wide price_ = 0;        // lambda * unit
  int64_t lower_ = 0;
  std::vector<States> from_start_, to_end_;  // by boundary, at the best price
  std::vector<int64_t> around_;              // by slot, where cells are shared
};

}  // namespace reprise::internal::chain
