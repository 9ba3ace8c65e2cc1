// An independent judge of plans. Depends on the graph only, never on a planner; runs on every plan
// before it is returned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

enum class ViolationKind {
  kUnknownId,       // an op, variant or value that the graph does not have
  kNotLive,         // a read or free of a value that is not live
  kInputFreed,      //
  kMissingRun,      // an op that must run does not
  kRepeatedRun,     // an op that runs once runs again
  kOrder,           // once, loss and backward ops, or first runs of random ops, out of graph order
  kRole,            // a first-run variant in a replay, or the other way round
  kChoice,          // ops of two realizations of one choice, or of none
  kMissingResult,   // a result that is not live at the end
  kLeftOver,        // something else that is live at the end
  kOverBudget,      //
  kFalseClaim,      // peak, time, budget, baseline or bound that does not hold
  kOtherProblem,    // the plan is for another problem
};

struct Violation {
  ViolationKind kind;
  int64_t action = -1;  // position in Plan::actions; -1: the plan as a whole
  std::string id;       // the op, value or claim
  Bytes over;           // kOverBudget: bytes above the budget
  std::string message;  // one line for people: what, where, by how much

  bool operator==(const Violation&) const = default;
};

// All violations (10'000 end it), by action; empty for a valid plan. Memory is counted twice: by an
// event walk, and by sums over the intervals in which values are live. If the two disagree on any
// action, InternalError. `problem`, when given, is compared with plan.problem (format, name, and sha256
// where both have one). O(actions * values per action).
std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget);
std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const ProblemId& problem);

const char* to_string(ViolationKind kind);  // "unknown id", "over budget", ...

}  // namespace reprise
