// The constants and switches of the planner `graph`, all in one value.
//
// They are for tests and experiments inside the project: the defaults are what a user gets.
// Whatever the values, plans are valid and bounds hold. Shares are of the time that is left when a
// part begins.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "plan/graph/bound/params.h"
#include "plan/graph/search/params.h"
#include "plan/graph/starts/params.h"

namespace reprise::internal::graph {

struct GraphSwitches {
  bool exact_first = true;     // first without alternatives of other bits; that schedule is a seed
  bool impossible = true;      // variants that no plan within the budget can use are left out
  bool segments_first = true;  // a large graph has plans with segments before it has a bound
  bool dtr = true;             // where the plan is not near the bound, also what dtr.cc finds

  bool operator==(const GraphSwitches&) const = default;
};

struct FrontierParams {
  int64_t most_samples = 33;        // budgets of a curve: 2, 3, 5, 9, ... up to so many
  double share_for_smallest = 0.2;  // for the smallest budget
  double share_for_sample = 2;      // for each other budget, as a multiple of an equal share

  bool operator==(const FrontierParams&) const = default;
};

struct GraphSearchParams {
  GraphSwitches use;
  double share_for_exact = 0.5;       // for the graph without alternatives of other bits
  double share_for_impossible = 0.3;  // for variants that no plan within the budget can use
  double share_for_first = 0.5;       // for a first plan without the variants that are impossible
  double share_for_bound = 0.3;       // for single instants
  double share_for_cases = 0.1;       // for cases, stretches and pairs
  double share_for_starts = 0.4;      // for the starts, once there is a plan
  bound::BoundParams bound;
  starts::StartParams starts;
  search::SearchParams search;
  FrontierParams frontier;

  bool operator==(const GraphSearchParams&) const = default;
};

// A Switch is a heuristic or a pruning rule that can be switched off.
struct Switch {
  std::string_view name;  // "room.name"
  bool& (*of)(GraphSearchParams& params);
};

// Returns all switches, each once.
std::span<const Switch> switches();

}  // namespace reprise::internal::graph
