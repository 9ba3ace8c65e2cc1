// This is local search over sequences.
#pragma once

#include "plan/place/devices/sequence.h"

namespace reprise::internal::devices {

// Improves the candidate by annealing (anneal.h), and returns the best one that was seen. A byte
// above a capacity counts for `price` nanoseconds.
//
// A change is one of these: one run, or neighbours, go to another device or take another variant;
// two runs exchange their devices; a forward op runs again before one of its readers; a re-run is
// left out; a run stands elsewhere; all runs are ordered by their ends. Every change is laid out
// and simulated, with late frees or without.
Candidate improve(const Ground& ground, double price, Candidate start, const place::WalkLimits& limits);

}  // namespace reprise::internal::devices
