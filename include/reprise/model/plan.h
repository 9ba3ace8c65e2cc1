// The one plan language: a list of actions on a graph, with what the planner claims about it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise {

enum class ActionKind { kRun, kFree };

// ["run", op, variant] or ["free", value], by id, so that a plan from anywhere can be read and judged.
struct Action {
  ActionKind kind = ActionKind::kRun;
  std::string id;       // of the op or of the value
  std::string variant;  // of the op; empty for a free

  bool operator==(const Action&) const = default;
};

enum class Termination {
  kOptimal,     // the best of its schedule class: time = lower bound
  kFeasible,    // a plan, and a lower bound below its time
  kInfeasible,  // no plan of the class fits; the smallest budget that does is known
  kTimeLimit,   // stopped before either was known
};

// Plain training: the first option of everything, each value freed at its last use.
struct Baseline {
  Bytes peak;
  Nanos time;

  bool operator==(const Baseline&) const = default;
};

struct SearchCost {
  Nanos wall;
  Bytes memory;  // the search's own tables

  bool operator==(const SearchCost&) const = default;
};

// Which problem a plan is for.
struct ProblemId {
  std::string format;  // "reprise.chain" or "reprise.graph"
  std::string name;
  std::string sha256;  // of the problem's canonical JSON; empty when unknown

  bool operator==(const ProblemId&) const = default;
};

// Equal formats, names, and hashes where both have one. O(1).
bool same_problem(const ProblemId& a, const ProblemId& b);

struct Plan {
  ProblemId problem;
  std::string planner;
  Termination termination = Termination::kFeasible;
  std::string schedule_class = "all";
  Bytes budget;
  Bytes peak;         // claimed; verify() checks it
  Nanos time;         // claimed; verify() checks it
  Nanos lower_bound;  // on the time of every plan of the schedule class within the budget
  Baseline baseline;
  std::optional<SearchCost> search;
  std::vector<Action> actions;

  bool operator==(const Plan&) const = default;
};

// One run of an operation, by position.
struct Run {
  OpIndex op = 0;
  int32_t variant = 0;

  bool operator==(const Run&) const = default;
};

// The runs with every value freed as soon as nothing reads it before it is written again. Inputs,
// results and consumed values are never freed. This is the least memory that these runs in this order
// can take, so planners only decide what runs when. Throws InternalError if a run reads a value that
// is not there. O(runs * values per run).
std::vector<Action> with_frees(const Graph& graph, const std::vector<Run>& runs);

// Plain training: every op (of a choice: the first realization) once, in order, with its first
// admissible variant. On a lowered chain the first admissible variant of F<i> is its first option.
std::vector<Run> plain_runs(const Graph& graph);

const char* to_string(Termination termination);  // "optimal", "feasible", "infeasible", "time_limit"

}  // namespace reprise
