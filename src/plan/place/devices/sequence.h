// A Sequence is the runs of a plan in one order, each with the variant that says where it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "plan/place/devices/layout.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::devices {

using Sequence = std::vector<Run>;

// A Candidate is a sequence with what its layout costs.
struct Candidate {
  Sequence runs;
  bool late_frees = false;  // how it is laid out
  int64_t excess = 0;
  int64_t time = 0;
  std::vector<int64_t> ends;  // by run: when it is over
};

// Says whether the sequence keeps the rules of plans: ops that run once do so in the graph's order,
// as do first runs of random ops, and roles are respected. What runs read is not looked at.
bool keeps_rules(const Graph& graph, const Sequence& runs);

// Lays the runs out and simulates the plan. Returns nothing if a rule is broken, or if a run could
// not read what it needs.
std::optional<Candidate> evaluate(const Ground& ground, Sequence runs, bool late_frees);
// Returns the better layout of the two.
std::optional<Candidate> evaluate(const Ground& ground, const Sequence& runs);

// Says whether the first candidate is the better answer: within the capacities, or faster.
bool is_better(const Candidate& a, const Candidate& b);

// Orders the runs by the times at which they are over, as far as they do not depend on each other.
// A copy begins behind the runs that stand before it at both of its ends. So it should stand before
// the runs that are over later.
Sequence by_end(const Ground& ground, const Candidate& candidate);

}  // namespace reprise::internal::devices
