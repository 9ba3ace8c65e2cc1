// This planner moves everything, as a rule without a budget does: torch.autograd.graph.save_on_cpu()
// in PyTorch, and the activation offloading of most trainers. Each value that the backward needs
// goes to the other memory behind its last use in the forward, and the runs wait until it has left.
// It comes back when the backward asks for it, and the runs wait again. So nothing overlaps.
//
// Other planners are compared with it. The cost is O(runs * values per run).
//
// Values that do not fit into the memory behind the device stay. If there are several lanes, the
// planner takes the one with the largest bandwidth.
//
// Tests: those of every planner; property/levels_test.cc (SaveOnCpuTakesTheTimeOfEveryCopy).
#include <algorithm>
#include <string>
#include <vector>

#include "plan/baselines/baselines.h"
#include "plan/literature/planner.h"
#include "plan/graph/bound/with_copies.h"
#include "plan/place/copies.h"
#include "plan/place/lanes.h"
#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"

namespace reprise::internal::literature {

using place::Lane;

namespace {

// A Gap of a value lies around the loss: from its last touch before to its first use behind.
struct Gap {
  int64_t last = -1, next = -1;  // runs
};

const Variant& chosen(const Graph& graph, const Run& run) {
  return graph.ops[run.op].variants[run.variant];
}

std::vector<Gap> gaps_of(const Graph& graph, const std::vector<Run>& runs, OpIndex loss) {
  std::vector<Gap> gaps(graph.values.size());
  bool before = true;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].op == loss) before = false;
    const auto at = static_cast<int64_t>(r);
    const auto touch = [&](ValueIndex value) {
      Gap& gap = gaps[value];
      if (before) gap.last = at;
      if (!before && gap.next < 0) gap.next = at;
    };
    const Variant& variant = chosen(graph, runs[r]);
    for (const ValueIndex value : variant.reads) touch(value);
    for (const ValueIndex value : variant.writes) touch(value);
  }
  return gaps;
}

// Returns plain training in which every value moves that fits.
std::vector<Action> moved(const ChainProblem& problem, const Lane& lane) {
  const Graph& graph = problem.graph;
  const Machine& machine = problem.options.machine;
  const std::vector<Run> runs = plain_runs(graph);
  const std::string& memory = machine.memories[lane.memory].name;
  const std::vector<Gap> gaps =
      gaps_of(graph, runs, ChainIndex{problem.chain.stages.size()}.loss());
  place::CopyLayout copies(machine, runs.size());
  int64_t room = lane.capacity;
  for (size_t v = 0; v < gaps.size(); ++v) {
    const Gap& gap = gaps[v];
    const Value& value = graph.values[v];
    if (gap.last < 0 || gap.next <= gap.last + 1) continue;
    if (value.kind == ValueKind::kInput || value.bytes.count() > room) continue;
    room -= value.bytes.count();
    copies.send(static_cast<size_t>(gap.last) + 1, value.id, memory);
    copies.leave(static_cast<size_t>(gap.last) + 1, value.id, memory);
    copies.bring(static_cast<size_t>(gap.next), value.id, memory);
    copies.need(static_cast<size_t>(gap.next), value.id, memory);
  }
  std::vector<Action> actions;
  size_t run = 0;
  for (const Action& action : with_frees(graph, runs)) {
    if (action.kind == ActionKind::kRun) copies.write(run++, actions);
    actions.push_back(action);
  }
  return actions;
}

}  // namespace

Answer save_on_cpu_chain(const ChainProblem& problem) {
  const Machine& machine = problem.options.machine;
  const std::vector<Lane> lanes = place::lanes_of(machine);
  if (lanes.empty()) return baselines::keep_all_chain(problem);
  Answer answer;
  common::SearchControl control(problem.options, "save_on_cpu");
  answer.lower_bound =
      bound::bound_with_copies(problem.graph, problem.budget, machine, control).time;
  answer.actions = moved(problem, lanes.front());
  const Timeline timeline = simulate(problem.graph, answer.actions, machine);
  if (timeline.peak > problem.budget) {
    answer.termination = Termination::kInfeasible;
    answer.smallest_budget = timeline.peak;
    const std::vector<BoundAction> bound = reprise::bind(problem.graph, answer.actions, machine);
    const BoundAction* at = timeline.peak_action < 0 ? nullptr : &bound[timeline.peak_action];
    if (at != nullptr && at->kind == ActionKind::kRun) {
      answer.blocking_op = problem.graph.ops[at->target].id;
    }
    return answer;
  }
  answer.set_found(timeline.time);
  return answer;
}

}  // namespace reprise::internal::literature
