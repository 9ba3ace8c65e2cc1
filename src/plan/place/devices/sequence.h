// A Sequence is the runs of a plan in one order, each with the variant that says where it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/place/anneal.h"
#include "plan/place/devices/layout.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::devices {

using Sequence = std::vector<Run>;

// A State is a sequence with how it is laid out.
struct State {
  Sequence runs;
  bool late_frees = false;
  std::vector<int64_t> ends = {};  // by run: when it is over
};

using Candidate = place::Candidate<State>;

// Says whether the sequence keeps the rules of plans: ops that run once do so in the graph's order,
// as do first runs of random ops, and roles are respected. What runs read is not looked at.
bool keeps_rules(const Graph& graph, const Sequence& runs);

// Lays the runs out and simulates the plan. Returns nothing if a rule is broken, or if a run could
// not read what it needs.
std::optional<Candidate> evaluate(const Ground& ground, Sequence runs, bool late_frees);
// Returns the better layout of the two.
std::optional<Candidate> evaluate(const Ground& ground, const Sequence& runs);

// Orders the runs by the times at which they are over, as far as they do not depend on each other.
// A copy begins behind the runs that stand before it at both of its ends. So it should stand before
// the runs that are over later.
Sequence by_end(const Ground& ground, const State& state);

}  // namespace reprise::internal::devices
