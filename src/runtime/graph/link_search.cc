#include "runtime/graph/link_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "runtime/graph/link.h"

namespace reprise::runtime::internal::graph {
namespace {

// The first search gets this share of the time, and each further one this share.
constexpr double kFirstShare = 0.6, kNextShare = 0.2;
// Re-runs behind the sum that the others wait for take their time divided by this.
constexpr std::array<int64_t, 2> kDivisors = {16, 2};
constexpr const char* kAgain = "~again";  // behind the name of a variant for re-runs

// By op and name: the variant that a variant for re-runs stands for.
using Originals = std::map<std::pair<std::string, std::string>, std::string>;

// An OnLink is a plan with its sums, as the simulator sees it.
struct OnLink {
  std::vector<Action> actions;
  Timeline timeline;
};

OnLink on_link(const StepProgram& program, const Graph& graph, const Plan& plan,
               const Machine& machine) {
  OnLink found{with_sums(program.lowered, graph, program.step.buckets, plan.actions, machine), {}};
  found.timeline = simulate(graph, found.actions, machine);
  return found;
}

// Returns the action that starts the sum which delays the step: the last sum that the step waits
// for, or the first of those that the link carries before it without a gap. -1: the step waits for
// none.
int64_t delaying_start(const OnLink& found) {
  std::vector<Transfer> transfers;  // of sums
  for (const Transfer& transfer : found.timeline.transfers) {
    if (is_sum(found.actions[transfer.action])) transfers.push_back(transfer);
  }
  size_t last = transfers.size();
  for (size_t a = 0; a < found.actions.size(); ++a) {
    const Action& action = found.actions[a];
    if (!is_sum(action) || action.kind != ActionKind::kWait) continue;
    if (found.timeline.steps[a].time == Nanos(0)) continue;
    for (size_t t = 0; t < transfers.size(); ++t) {
      const Action& copy = found.actions[transfers[t].action];
      if (copy.id == action.id && copy.to == action.at) last = t;
    }
  }
  if (last == transfers.size()) return -1;
  while (last > 0 && transfers[last].start > transfers[last].issued) --last;
  return transfers[last].action;
}

// Says for each op whether its values are first read by the backward behind op `start`.
std::vector<char> ops_read_behind(const Graph& graph, OpIndex start) {
  constexpr OpIndex kNever = std::numeric_limits<OpIndex>::max();
  std::vector<OpIndex> first(graph.values.size(), kNever);  // by value: the backward that reads it
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (graph.ops[o].phase != Phase::kBackward) continue;
    for (const Variant& variant : graph.ops[o].variants) {
      for (const ValueIndex value : variant.reads) {
        OpIndex& reader = first[value];
        reader = std::min(reader, static_cast<OpIndex>(o));
      }
    }
  }
  std::vector<char> behind(graph.ops.size(), 0);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    OpIndex reader = kNever;
    for (const Variant& variant : graph.ops[o].variants) {
      for (const ValueIndex value : variant.writes) {
        reader = std::min(reader, first[value]);
      }
    }
    behind[o] = !graph.ops[o].once && reader > start ? 1 : 0;
  }
  return behind;
}

// Says whether a plan runs an op again before the backward that stands behind op `start`.
bool runs_again_before(const Graph& graph, const Plan& plan, const Machine& machine,
                       const std::vector<char>& behind) {
  std::vector<char> seen(graph.ops.size(), 0);
  for (const BoundAction& action : bind(graph, plan.actions, machine)) {
    if (action.kind != ActionKind::kRun) continue;
    const auto op = static_cast<size_t>(action.target);
    if (std::exchange(seen[op], 1) != 0 && behind[op] == 0) return true;
  }
  return false;
}

// Returns the graph in which re-runs of some ops take a part of their time. Their variants are two:
// one for first runs, with its name, and one for re-runs.
Graph with_cheap_reruns(Graph graph, const std::vector<char>& cheap, int64_t divisor,
                        Originals& originals) {
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (cheap[o] == 0) continue;
    std::vector<Variant>& variants = graph.ops[o].variants;
    const size_t before = variants.size();
    for (size_t v = 0; v < before; ++v) {
      if (variants[v].role == Role::kFirst) continue;
      Variant again = variants[v];
      again.time = Nanos(again.time.count() / divisor);
      if (again.role == Role::kReplay) {
        variants[v] = std::move(again);
        continue;
      }
      variants[v].role = Role::kFirst;
      again.role = Role::kReplay;
      again.name += kAgain;
      originals[{graph.ops[o].id, again.name}] = variants[v].name;
      variants.push_back(std::move(again));
    }
  }
  return graph;
}

// Returns the answer for the changed graph as one for the graph. `first` is an answer for the
// graph.
PlanResult carried_back(const Graph& graph, const Machine& machine, const Originals& originals,
                        PlanResult found, const PlanResult& first) {
  Plan& plan = *found.plan;
  for (Action& action : plan.actions) {
    if (action.kind != ActionKind::kRun) continue;
    const auto original = originals.find({action.id, action.variant});
    if (original != originals.end()) action.variant = original->second;
  }
  plan.problem = first.plan->problem;
  plan.baseline = found.baseline = first.baseline;
  plan.schedule_class = found.schedule_class = first.schedule_class;
  plan.time = simulate(graph, plan.actions, machine).time;
  plan.lower_bound = found.lower_bound = first.lower_bound;
  plan.termination = found.termination =
      plan.time == plan.lower_bound ? Termination::kOptimal : Termination::kFeasible;
  return found;
}

Nanos part_of(Nanos time, double part) {
  return Nanos(static_cast<int64_t>(static_cast<double>(time.count()) * part));
}

}  // namespace

StepPlan search_on_link(const StepProgram& program, const Graph& graph,
                        const StepPlanOptions& options, Bytes slack,
                        std::optional<c10::Device> arena) {
  StepPlanOptions asked = options;
  asked.time_limit = part_of(options.time_limit, kFirstShare);
  StepPlan best = search_step(graph, asked, slack, arena);
  if (!best.result.plan) return best;
  const StepPlan first = best;
  const Machine &memories = options.offload.machine, machine = with_link(memories, program.link);
  OnLink now = on_link(program, graph, *best.result.plan, machine);
  const int64_t start = delaying_start(now);
  if (start <= 0) return best;
  // The op that starts the sum runs before the copy that stands for it.
  const OpIndex op = find_op(graph, now.actions[static_cast<size_t>(start) - 1].id);
  const std::vector<char> behind = ops_read_behind(graph, op);
  if (!runs_again_before(graph, *best.result.plan, memories, behind)) return best;
  asked.time_limit = part_of(options.time_limit, kNextShare);
  Nanos fastest = now.timeline.time;
  for (const int64_t divisor : kDivisors) {
    Originals originals;
    StepPlan next =
        search_step(with_cheap_reruns(graph, behind, divisor, originals), asked, slack, arena);
    if (!next.result.plan) continue;
    next.result = carried_back(graph, memories, originals, std::move(next.result), first.result);
    const Nanos time = on_link(program, graph, *next.result.plan, machine).timeline.time;
    if (time >= fastest) continue;
    fastest = time;
    next.before_placement = next.result.plan->time;
    best = std::move(next);
  }
  return best;
}

}  // namespace reprise::runtime::internal::graph
