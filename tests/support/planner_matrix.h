// One row a planner: what the tests that run on every planner may expect of it.
#pragma once

#include <span>

namespace reprise::testing {

struct PlannerRow {
  const char* name;
  bool chains;   // plans chains
  bool graphs;   // plans graphs
  bool curve;    // has a chain frontier
  bool optimal;  // every plan is the best of its schedule class
};

inline std::span<const PlannerRow> planner_matrix() {
  static constexpr PlannerRow kRows[] = {
      {.name = "chain", .chains = true, .graphs = false, .curve = true, .optimal = true},
      {.name = "chain_slots", .chains = true, .graphs = false, .curve = false, .optimal = false},
      {.name = "keep_all", .chains = true, .graphs = true, .curve = true, .optimal = false},
      {.name = "periodic", .chains = true, .graphs = false, .curve = true, .optimal = false},
      {.name = "revolve", .chains = true, .graphs = false, .curve = true, .optimal = false},
  };
  return kRows;
}

}  // namespace reprise::testing
