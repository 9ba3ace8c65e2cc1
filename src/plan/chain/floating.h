// Declares the search for plans with checkpoints that float; floating.cc describes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/chain/classes.h"
#include "plan/chain/model.h"
#include "plan/chain/search.h"
#include "plan/common/search_control.h"

namespace reprise::internal::chain {

struct FloatingSearch {
  bool drops = false;  // whether inputs of kept stages may be dropped
  size_t reach = 0;  // the largest t - s; from the number of stages on, the class is searched whole
  int threads = 1;
  CoarsePasses coarse_passes = CoarsePasses::kWhereUseful;
};

// Returns the largest reach with which the tables have at most so many pieces.
size_t floating_reach(const ChainModel& model, bool drops, size_t most_pieces);

// Improves the best plan of the outcome, or finds one, and sets the bound to one of the class. If
// no plan fits, and the class is searched whole, sets the floor. Returns whether the outcome speaks
// of the class now; otherwise there is no plan, and the outcome is as it was.
bool search_floating(const ChainModel& model, const FloatingSearch& search, int64_t memory,
                     ClassResult& outcome, common::SearchControl& control);

}  // namespace reprise::internal::chain
