// One rank plans for all.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/plan/plan.h"
#include "runtime/distributed/ranks.h"

namespace reprise::runtime::internal::distributed {

// Lets rank 0 search, and gives its answer to all ranks. Every rank verifies the plan on its graph and
// the machine, for the budget, and all say yes before one of them gets it. Throws what the search throws,
// and InputError if a rank refuses the plan; on all ranks.
PlanResult plan_of_first(Ranks& ranks, const Graph& graph, const Machine& machine, Bytes budget,
                         const std::function<PlanResult()>& search);

// Makes the machine that of the slowest channels and the smallest capacities of all ranks. Channels that
// take turns on one rank take turns on all of them. Throws
// InputError on all ranks if some have other memories or channels than rank 0; the message names them.
void agree_on_machine(Ranks& ranks, Machine& machine, c10::Device device);

// A SharedDecision is one of all ranks, with its reason in words.
struct SharedDecision {
  bool yes = false;
  std::string why;

  bool operator==(const SharedDecision&) const = default;
};
// Returns the decision of rank 0 on all ranks. Without ranks it is that of this process.
SharedDecision decision_of_first(Ranks* ranks, const std::function<SharedDecision()>& decide);
// Returns the first reason that is not empty, by rank. Without ranks it is that of this process.
std::string first_reason(Ranks* ranks, const std::string& mine, const std::string& what);

// Throws InputError on all ranks unless `objection` is empty on all of them.
void agree_on_plan(Ranks& ranks, const std::string& objection);

}  // namespace reprise::runtime::internal::distributed
