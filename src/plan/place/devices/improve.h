// This is local search over sequences.
#pragma once

#include <functional>

#include "plan/common/search_control.h"
#include "plan/place/devices/sequence.h"

namespace reprise::internal::devices {

struct ImproveParams {
  int64_t evaluations = 1000;
  double tolerance = 0.008;  // at first, as a share of the time
  double price = 1;          // of a byte above a capacity, in nanoseconds
  int64_t floor = 0;         // no plan is faster: a search that gets there is done
  uint64_t seed = 1;
};

// Improves the candidate by annealing (anneal.h), and returns the best one that was seen: those
// within the capacities come first, then faster ones.
//
// A change is one of these: one run, or neighbours, go to another device or take another variant;
// two runs exchange their devices; a forward op runs again before one of its readers; a re-run is
// left out; a run stands elsewhere; all runs are ordered by their ends. Every change is laid out
// and simulated, with late frees or without.
Candidate improve(const Ground& ground, Candidate start, const ImproveParams& params,
                  common::SearchControl& control);

}  // namespace reprise::internal::devices
