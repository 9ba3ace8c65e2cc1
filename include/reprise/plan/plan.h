// Planning: a problem, a budget, an answer that says how good it is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/frontier.h"
#include "reprise/model/graph.h"
#include "reprise/model/observer.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

struct PlanOptions {
  Budget budget = {};                  // default: no limit; shares are of plain training's peak
  std::string planner{};               // empty: "chain" for chains, "graph" for graphs
  // Of planners that have several: the class to search and to prove. Empty: the largest one that
  // the time limit allows.
  std::string schedule_class{};
  Nanos time_limit{10'000'000'000};    // of the search
  int threads = 0;                     // 0: as many as the machine has
  Exactness allow = Exactness::kBitwise;  // the least exact option or variant that may be used
  // Bytes of the budget that the plan should leave unused, where one is found that does (planners
  // of graphs that search). What is said of all plans within the budget is said of the whole one.
  Bytes reserve = {};
  Observer observer{};                 // progress; may be empty
};

// A Proof says which plans an answer speaks of: those that its lower bound holds for, and those of
// which `infeasible` says that none fits. explain_no_plan() (report/text.h) turns it into
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
  std::optional<Plan> plan;            // with kOptimal and kFeasible; verified before it is returned
  std::string planner;
  std::string schedule_class;          // what the bound and `optimal` refer to
  Proof proof = Proof::kTried;         // what kInfeasible and smallest_budget refer to
  Bytes budget;                        // resolved
  Nanos lower_bound;                   // on the time of every plan of the class within the budget
  Baseline baseline;
  // kInfeasible: the smallest budget at which this planner has a plan, and the op that needs it.
  // kTimeLimit: the smallest that it found a plan for, if it says so; no op.
  std::optional<Bytes> smallest_budget;
  std::string blocking_op;
  SearchCost search;
};

// Throws InputError for a malformed problem, an unknown planner, a planner of the other kind of
// problem, a budget that is negative. An infeasible budget is an answer, not an error.
// InternalError when the answer fails verification: never returned.
PlanResult plan(const Chain& chain, const PlanOptions& options = {});
PlanResult plan(const Graph& graph, const PlanOptions& options = {});

// options.budget is ignored. Planners without a curve of their own are asked at their candidates.
Frontier frontier(const Chain& chain, const PlanOptions& options = {});
// Of a graph: single budgets from the smallest that the search finds to plain training's, as many
// as the time limit allows, each plan verified. Between two points a plan of a time between theirs
// may exist.
Frontier frontier(const Graph& graph, const PlanOptions& options = {});

}  // namespace reprise
