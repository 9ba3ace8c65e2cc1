// plan() takes a problem and a budget, and returns a plan with a statement of how good the plan is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/frontier.h"
#include "reprise/model/graph.h"
#include "reprise/model/join.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"
#include "reprise/plan/options.h"

namespace reprise {

// A Proof says which plans an answer speaks of. The lower bound holds for these plans, and
// `infeasible` says that none of them fits. explain_no_plan() (report/text.h) turns a Proof into
// words.
enum class Proof {
  // The planner knows the schedules that it tried, and no others.
  kTried,
  // The answer holds for all plans of its schedule class, and so does the smallest budget.
  kScheduleClass,
  // The answer holds for all valid plans. The smallest budget is the smallest that was found.
  kAllPlans,
};

struct PlanResult {
  Termination termination = Termination::kTimeLimit;
  std::optional<Plan> plan;  // with kOptimal and kFeasible; always verified
  std::string planner;
  std::string schedule_class;    // class of the bound and of `optimal`
  Proof proof = Proof::kTried;   // basis of kInfeasible and smallest_budget
  Bytes budget;                  // in bytes, with any share resolved
  std::string machine_sha256{};  // of the machine, if it has channels
  Nanos lower_bound;             // bounds the time of every plan of the class in the budget
  Baseline baseline;
  // With kInfeasible: the smallest budget at which this planner has a plan, and the op that needs
  // it. With kTimeLimit: the smallest budget for which the planner found a plan, if it reports one,
  // and no op.
  std::optional<Bytes> smallest_budget;
  std::string blocking_op;
  SearchCost search;
};

// These functions throw InputError for a malformed problem, an unknown planner, a planner for the
// other kind of problem, a negative budget, and a machine with channels for a planner that does not
// move values. An infeasible budget is an answer, not an error.
// They throw InternalError if the answer fails verification, so an unverified plan is never
// returned.
PlanResult plan(const Chain& chain, const PlanOptions& options = {});
PlanResult plan(const Graph& graph, const PlanOptions& options = {});
// The backwards of a join run in the order that the planner chooses, and the plan is one of
// lower(join, interleaving_of(join, actions)). The plan's baseline is plain training in that order;
// the result's baseline, and shares of a budget, are those of lower(join). A planner of graphs may
// be named, too: it plans lower(join). On a machine with channels, one is the default.
PlanResult plan(const Join& join, const PlanOptions& options = {});

// These functions ignore options.budget. They throw InputError for a planner without a curve. The
// curve of `keep_all`, `periodic` or `revolve` consists of the schedules of its family that no
// other schedule of the family beats. On a machine with channels every planner that moves values
// has a curve. It consists of single budgets, at most 35, which share the time limit. Each plan is
// verified, and a plan with a time between those of two points may exist.
Frontier frontier(const Chain& chain, const PlanOptions& options = {});
// The curve of a graph consists of single budgets, from the smallest that the search finds to plain
// training's. There are as many as the time limit allows, and each plan is verified. A plan with a
// time between those of two points may exist.
Frontier frontier(const Graph& graph, const PlanOptions& options = {});
// The curve of a join is that of lower(join).
Frontier frontier(const Join& join, const PlanOptions& options = {});

}  // namespace reprise
