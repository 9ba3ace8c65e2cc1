// A Plan is a list of actions on a graph, with the claims of its planner. It is the only plan
// language: all planners write it, and the simulator, the verifier and the interpreter read it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/units.h"

namespace reprise {

// Code that treats kinds differently is a switch over all of them and has no default: the compiler
// then names every place that a new kind concerns.
enum class ActionKind { kRun, kFree, kCopy, kWait, kSend, kReceive };

// Says whether an action of this kind names two memories: a copy, a send or a receive.
constexpr bool has_two_ends(ActionKind kind) {
  return kind == ActionKind::kCopy || kind == ActionKind::kSend || kind == ActionKind::kReceive;
}

// An Action is ["run", op, variant], ["free", value], ["copy", value, from, to],
// ["wait", value, at], ["send", value, from, to] or ["receive", value, from, to]. It names ops, values and memories, so that a plan from anywhere can be read
// and judged. A plan without copies needs no machine (model/machine.h); all its values are on the
// device. Copies also say where a value with a home elsewhere (Value::home) lies between the steps: one
// that is never copied stays on the device.
//
// A copy starts when the runs before it are over, its channel is free, and the value has arrived
// where it comes from. The runs after it go on meanwhile. A wait holds them up until the copy that
// makes the value there is over. On a machine with several devices, docs/memories.md says which
// runs these are.
//
// A message is a copy whose two ends are at different places of the plan. The receive makes room
// where the value arrives, and the send hands the value over; neither holds up runs, and either may
// come first. The message starts when both are done and its channel has carried what was handed
// over before. A wait is for a message into its memory and for those out of it. It stands behind
// both ends of them.
struct Action {
  ActionKind kind = ActionKind::kRun;
  std::string id;       // the id of the op or of the value
  std::string variant;  // the name of the op's variant; empty for all but runs
  // The memory of a free or a wait, and the one that a copy or a message reads. An empty text stands
  // for the device. Files name the memories of all but runs and frees in every case.
  std::string at = {};
  std::string to = {};  // the memory that a copy or a message writes
  // A copy's channel also waits for these earlier copies. They are positions in the plan.
  std::vector<int64_t> after = {};

  bool operator==(const Action&) const = default;
};

// A BoundAction is an action with its names looked up. The target of a run is an OpIndex, and that
// of all others is a ValueIndex. Memories are positions in the machine.
struct BoundAction {
  ActionKind kind = ActionKind::kRun;
  int32_t target = 0;
  int32_t variant = 0;
  int32_t at = 0;        // the memory of a run, a free or a wait, and the one that a copy reads
  int32_t to = 0;        // the memory that a copy writes
  int32_t channel = -1;  // the channel of a copy
  std::vector<int64_t> after = {};

  bool operator==(const BoundAction&) const = default;
};

// A Termination says how a search ended.
enum class Termination {
  kOptimal,     // The plan is the best of its schedule class: its time equals the lower bound.
  kFeasible,    // There is a plan, and its time is above the lower bound.
  kInfeasible,  // No plan fits the budget.
  kTimeLimit,   // The search stopped before it found a plan or a proof that there is none.
};

// A Baseline is the cost of plain training, which runs the first option of every op and frees each
// value after its last use.
struct Baseline {
  Bytes peak;
  Nanos time;

  bool operator==(const Baseline&) const = default;
};

// A SearchCost is what the search for a plan cost.
struct SearchCost {
  Nanos wall;
  Bytes memory;  // the bytes of the search's own tables

  bool operator==(const SearchCost&) const = default;
};

// A ProblemId names the problem that a plan is for.
struct ProblemId {
  std::string format;  // "reprise.chain", "reprise.graph" or "reprise.join"
  std::string name;
  std::string sha256;  // the hash of the problem's canonical JSON; empty when unknown

  bool operator==(const ProblemId&) const = default;
};

// Says whether formats and names are equal, and hashes too where both have one.
bool same_problem(const ProblemId& a, const ProblemId& b);

struct Plan {
  ProblemId problem;
  std::string planner;
  Termination termination = Termination::kFeasible;
  std::string schedule_class = "all";
  Bytes budget;
  Bytes peak;         // The planner claims this peak; verify() checks it.
  Nanos time;         // The planner claims this time; verify() checks it.
  Nanos lower_bound;  // No plan of the schedule class within the budget is faster.
  Baseline baseline;
  std::optional<SearchCost> search;
  std::vector<Action> actions;
  // The sha256 of the machine's canonical JSON, if the plan was made for one that has channels.
  std::string machine_sha256 = {};

  bool operator==(const Plan&) const = default;
};

// A Run is one execution of an op with one of its variants, by position.
struct Run {
  OpIndex op = 0;
  int32_t variant = 0;

  bool operator==(const Run&) const = default;
};

// Returns the runs as actions, with every value freed as soon as no run reads it before it is
// written again. Inputs, results and consumed values are never freed. These runs in this order
// cannot take less memory, so that planners only decide what runs when. Throws InternalError if a
// run reads a value that is not live. The cost is O(runs * values per run).
std::vector<Action> with_frees(const Graph& graph, const std::vector<Run>& runs);
std::vector<BoundAction> with_bound_frees(const Graph& graph, const std::vector<Run>& runs);
// The same for runs, waits, sends and receives in any memory. What a message reads stays until it has
// been waited for there. Nobody looks whether what they read is live.
std::vector<BoundAction> with_bound_frees(const Graph& graph, std::vector<BoundAction> actions);

// Returns the runs of plain training: every op runs once, in order, with its first admissible
// variant. The first realization of each choice runs. In a lowered chain, the first admissible
// variant of a forward op is the first option of its stage.
std::vector<Run> plain_runs(const Graph& graph);

// Says of each value with a home elsewhere whether a plan with these actions leaves it on the device all
// the time: runs on the device touch it, and it is never copied, nor is what takes over its memory or what
// it takes over.
std::vector<char> stays_on_device(const Graph& graph, const std::vector<Action>& actions);
// Returns the graph where these values live on the device, or nothing if there are none. All that judges a
// plan judges it on this graph.
std::optional<Graph> as_placed(const Graph& graph, const std::vector<Action>& actions);

// Returns whether a plan needs a machine: it has a copy or a wait, or frees a value elsewhere.
bool moves_values(const Plan& plan);

// Returns the actions with their names. A free on the device names no memory.
std::vector<Action> with_names(const Graph& graph, const std::vector<BoundAction>& actions,
                               const Machine& machine);

// Returns "run", "free", "copy", "wait", "send" or "receive".
const char* to_string(ActionKind kind);
// Returns "optimal", "feasible", "infeasible" or "time_limit".
const char* to_string(Termination termination);

}  // namespace reprise
