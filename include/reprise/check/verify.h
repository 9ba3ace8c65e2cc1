// verify() judges plans. It depends on the graph only, never on a planner, and it judges every plan
// before a planner's answer is returned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

enum class ViolationKind {
  // The graph lacks an op, a variant or a value of the plan, or the machine a memory, a device or a
  // channel.
  kUnknownId,
  kNotLive,        // An action reads or frees a value that is not live.
  kInputFreed,     // An action frees an input.
  kMissingRun,     // An op that must run does not run.
  kRepeatedRun,    // An op that runs once runs again.
  kOrder,          // Ops that run once, or first runs of random ops, are not in the graph's order.
  kRole,           // A re-run has a variant for first runs, or a first run has one for re-runs.
  kChoice,         // Ops of two realizations of a choice run, or ops of none.
  kMissingResult,  // A result is not live at the end.
  kLeftOver,       // A value that is neither input nor result is live at the end.
  kOverBudget,     // An action needs more bytes than the budget, or than a memory has.
  kFalseClaim,     // A claim of the plan does not hold: peak, time, budget, baseline or bound.
  kOtherProblem,   // The plan is for another problem.
  kAlreadyThere,   // A copy goes to a memory where the value is already.
  kUnderWay,       // A value is read or given back, and nobody has waited for a copy of it.
  // A message lacks one of its ends, or is waited for before it can start. In a pipeline
  // (check/pipeline.h) also: it lacks its wait or its link, or its ends differ in order.
  kUnmatched,
  // These are of pipelines only.
  kPart,      // A part has stages, plans or a device that do not fit the problem.
  kDeadlock,  // Devices wait for each other.
};

struct Violation {
  ViolationKind kind;
  int64_t action = -1;  // the position in Plan::actions; -1 for the plan as a whole
  std::string id;       // the id of the op or value, or the name of the claim
  Bytes over;           // for kOverBudget: the bytes above the budget
  std::string message;  // one line for people, which says what, where and by how much

  bool operator==(const Violation&) const = default;
};

// Returns all violations in the order of the actions; it stops at 10'000. A valid plan has none.
// Memory is counted twice: by a walk over the actions, and by sums over the intervals in which
// values are live. Throws InternalError if the two counts differ at any action. If `problem` is
// given, it is compared with plan.problem: the format, the name, and the sha256 where both have
// one. The cost is O(actions * values per action).
//
// A plan that moves values, or runs on several devices, is judged with its machine. The budget is
// that of the first memory; the others have their capacities. Nothing in these counts is a time: a
// value counts from the copy that brings it to its free, and a free needs a wait for every copy of
// the value. So a valid plan keeps to its bytes for all durations of runs and copies. In a memory
// with a capacity, what a channel gives back while the runs go on (copies that come `after` others)
// still counts until its free, which is safe and not exact.
std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const Machine& machine = {});
std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const ProblemId& problem, const Machine& machine = {});

const char* to_string(ViolationKind kind);  // "unknown id", "over budget", ...

}  // namespace reprise
