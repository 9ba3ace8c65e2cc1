// States the rules of a valid plan and its cost a second time, straight from the text: by name, on
// sets of strings, with no index, no early end and no thought of speed. It is the oracle for
// simulate() and verify(), on small problems.
#pragma once

#include <cstdint>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct NaiveResult {
  bool valid = true;  // of the actions; says nothing about budget and claims
  int64_t peak = 0;   // of a valid plan
  int64_t time = 0;

  bool operator==(const NaiveResult&) const = default;
};

NaiveResult naive_check(const Graph& graph, const std::vector<Action>& actions);

// Tells whether actions, budget and all claims hold.
bool naive_accepts(const Graph& graph, const Plan& plan, int64_t budget);

// Returns a plan of these actions with true claims. They must be valid enough to be simulated.
Plan claimed_plan(const Graph& graph, const std::vector<Action>& actions);

}  // namespace reprise::testing
