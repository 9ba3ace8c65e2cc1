// PlanOptions say what plan() should look for, and how long.
#pragma once

#include <stop_token>
#include <string>

#include "reprise/model/machine.h"
#include "reprise/model/observer.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

struct PlanOptions {
  Budget budget = {};  // default: no limit; shares are of plain training's peak
  // Empty: "chain" for chains, "graph" for graphs, "join" for joins. On a machine with channels:
  // "levels" for chains, "graph_levels" for graphs and joins, and "devices" for graphs whose
  // variants name another device of the machine.
  std::string planner{};
  // The schedule class to search and to prove, for planners that have several. An empty text stands
  // for the largest class that the time limit allows.
  std::string schedule_class{};
  // The number of slots that the planner `chain_slots` divides the memory into, or fewer if its
  // tables would be too large. 0: the planner chooses.
  int slots = 0;
  Nanos time_limit{10'000'000'000};       // limit on the search
  int threads = 0;                        // 0: as many as the machine has
  Exactness allow = Exactness::kBitwise;  // the least exact option or variant that may be used
  // The planners of graphs that search look for a plan that leaves this many bytes of the budget
  // unused. They return a plan that uses these bytes if they find no other. Statements about all
  // plans within the budget refer to the whole budget.
  Bytes reserve = {};
  Observer observer{};  // progress; may be empty
  // Once a stop is requested, on whatever thread, the search ends as if its time were over. Planners
  // of chains that move values keep to their time limit alone.
  std::stop_token stop{};
  // The memories that values may move to, and the devices that ops may run on. The budget is that
  // of its first memory.
  Machine machine{};
};

}  // namespace reprise
