// A lower bound on what every plan of a chain costs in so much memory, and on what plans that have a
// certain segment cost, from one moment of the plan: when the loss runs.
//
// Everything that is live then lies in memory together. A stage whose saved bytes are live was run
// forward once; any other stage will run forward once more, and the stages on the way to it from the
// nearest live boundary, too. Which boundaries and saved bytes to hold so that the cost is least is
// a shortest path along the chain but for the limit on the sum of their bytes; that limit is priced
// (Lagrangian relaxation: Geoffrion, Lagrangean relaxation for integer programming, Mathematical
// Programming Study 2, 1974): a byte costs lambda, and
//
//   bound = max over lambda >= 0 of  min over paths of (cost + lambda * bytes) - lambda * memory.
//
// Numbers are exact: lambda is a fraction of integers, sums have 128 bits.
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

  // memory: bytes beyond fixed and x_0. With Dropping::kInputs for plans that drop inputs, too.
  // O(L * options) time for each of some hundred values of lambda.
  LossBound(const ChainModel& model, Dropping dropping, int64_t memory);

  int64_t lower() const { return lower_; }  // on the cost of every plan, never negative

  // Prepares around(cell) for cells that several segments share. O(segments).
  void tabulate(const ChainCells& cells);

  // On the cost of all that a plan with this cell does outside of it, wherever the plan has it: shared
  // cells must have been tabulated. The second one holds for cells that end with the loss and have
  // `memory` bytes.
  int64_t around(const Cell& cell) const;
  int64_t around(const Cell& cell, int64_t memory) const;

  // cost + lambda * bytes. In these terms sums of parts are bounded without looking at each amount of
  // memory: a plan that costs at most `limit` has, as its segment from stage `first` to the loss, a
  // step of that cell's curve that weighs at most most_weight().
  Wide weigh(int64_t cost, int64_t bytes) const;
  Wide most_weight(size_t first, int64_t limit) const;

 private:
  // Of a boundary while the loss runs: gone for good, gone but computed again later, live.
  enum State { kGone, kAgain, kLive };
  struct Value {
    Wide price;  // cost * unit + lambda * bytes
    Wide bytes;  // on the path that has it
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
  Dropping dropping_;
  int64_t memory_;        // of the boundaries and the saved bytes while the loss runs
  int64_t whole_memory_;  // beyond fixed and x_0
  Wide price_ = 0;        // lambda * unit
  int64_t lower_ = 0;
  std::vector<States> from_start_, to_end_;  // by boundary, at the best price
  std::vector<int64_t> around_;              // by slot, where cells are shared
};

}  // namespace reprise::internal::chain
