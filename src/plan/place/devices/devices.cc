// This file plans graphs on a machine with several devices.
//
// Paper: M. Schuler, R. Membarth, P. Slusallek: XEngine: Optimal tensor rematerialization for
// neural networks in heterogeneous environments, ACM TACO 20(1), 2022. It asks which device runs
// what, what is copied, kept or made again, within the memory of each device, and answers with a
// mixed-integer quadratic program over a grid of steps. Here the same question is answered by a
// search.
//
//   XEngine                            here
//   devices d with memory budgets      memories that compute; the budget, and capacities
//   compute cost C_{d,i}               the times of the variants of an op, by Variant::at
//   copy cost between devices          channels, with latency and bandwidth, beside the runs
//   R_{d,t,i} (run), S_{d,t,i} (keep)  the runs of a Sequence; what lay_out() keeps for a read
//   T (steps)                          the order of the runs; it is not fixed
//
// Method: some first sequences (the planners of one device, HEFT), each laid out exactly
// (layout.h), then annealing over devices, re-runs and the order (improve.h). Copies take a
// channel's time beside the runs, runs of different devices overlap, and values may also move to
// memories that do not compute.
//
// Complexity: an evaluation is O(runs * (values per run + values held * memories)); their number is
// bounded by the size of the graph and the time.
//
// Guarantees: plans are within the budget and the capacities for any durations. A plan is never
// slower than what the planner graph_levels finds on the first device in its share of the time, nor
// than the laid-out plan of the planner graph for each other device. The bound holds for all plans
// (bound.h). Not proven: the search has no guarantee but the bound, which knows no bytes.
//
// Tests:
//   oracle/devices_planner_test.cc: against every plan on two devices of small graphs; the bound
//   property/devices_planner_test.cc: never slower than one device; capacities; equal answers
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "model/id_index.h"
#include "plan/common/admissible.h"
#include "plan/common/search_control.h"
#include "plan/graph/planner.h"
#include "plan/place/devices/bound.h"
#include "plan/place/devices/improve.h"
#include "plan/place/devices/planner.h"
#include "plan/place/devices/starts.h"
#include "plan/place/graph_levels/planner.h"
#include "plan/place/search.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::devices {

using common::SearchControl;

namespace {

constexpr double kShareFirst = 0.15;   // of the time, for graph_levels on the first device
constexpr double kShareOthers = 0.15;  // of the time, for the planner graph on the other devices
constexpr int64_t kEvaluationsForRun = 60, kLeastEvaluations = 800, kMostEvaluations = 60'000;

// Returns the graph as a device has it by itself: with its variants where an op has any there, and
// nothing is said of where they run.
Graph alone_on(const Ground& ground, int32_t device) {
  Graph graph = ground.graph;
  graph.fixed = device == 0 ? graph.fixed : Bytes(0);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const std::vector<int32_t>& where = ground.devices[o];
    const bool has = std::find(where.begin(), where.end(), device) != where.end();
    std::vector<Variant> variants;
    for (size_t k = 0; k < where.size(); ++k) {
      if (where[k] == (has ? device : 0)) variants.push_back(graph.ops[o].variants[k]);
    }
    for (Variant& variant : variants) variant.at.clear();
    graph.ops[o].variants = std::move(variants);
  }
  return graph;
}

class Devices {
 public:
  explicit Devices(const GraphProblem& problem)
      : problem_(problem),
        control_(problem.options, "devices"),
        ground_(problem.graph, problem.options.machine, problem.goal().count()),
        search_(control_, [this](Candidate start, const place::WalkLimits& limits) {
          return improve(ground_, price(), std::move(start), limits);
        }) {}

  Answer run() {
    control_.report(-1);
    const Ground whole(problem_.graph, problem_.options.machine, problem_.budget.count());
    bound_ = lower_bound(whole);
    blocking_ = impossible_op(whole);
    alone_ = on_first_device();
    if (blocking_ < 0) {
      offer(on_device(ground_, 0));
      offer(earliest_finish(ground_));
      offer(by_clusters(ground_));
      offer_other_devices();
      if (alone_.found() && alone_.actions.empty()) offer(named_alike(first_graph_, alone_.runs));
      search_.run(rules());
    }
    return answer();
  }

 private:
  GraphProblem sub_problem(const Graph& graph, Bytes budget, double share) const {
    GraphProblem sub{graph, problem_.baseline, budget, problem_.options};
    sub.options.time_limit = common::part_of(problem_.options.time_limit, share);
    return sub;
  }

  // Returns the best plan for one device, with all other memories behind it.
  Answer on_first_device() {
    first_graph_ = common::first_device_only(problem_.graph, problem_.options.machine);
    return graph_levels::graph_levels(sub_problem(first_graph_, problem_.budget, kShareFirst));
  }

  void offer_other_devices() {
    const std::vector<Memory>& memories = problem_.options.machine.memories;
    const auto others = std::count_if(memories.begin() + 1, memories.end(),
                                      [](const Memory& memory) { return memory.computes; });
    for (size_t m = 1; m < memories.size(); ++m) {
      const auto device = static_cast<int32_t>(m);
      if (!memories[m].computes) continue;
      offer(on_device(ground_, device));
      if (!memories[m].capacity || control_.out_of_time()) continue;
      const Graph graph = alone_on(ground_, device);
      GraphProblem sub =
          sub_problem(graph, *memories[m].capacity, kShareOthers / static_cast<double>(others));
      sub.baseline = reprise::baseline(graph);
      sub.options.machine = {};
      sub.options.reserve = {};
      const Answer there = graph::search_graph(sub);
      if (there.found()) offer(named_alike(graph, there.runs));
    }
  }

  // Finds the runs of a graph that has some of the ops and variants, by their names.
  Sequence named_alike(const Graph& graph, const std::vector<Run>& runs) const {
    IdIndex index(problem_.graph);
    Sequence result;
    for (const Run& run : runs) {
      const Op& op = graph.ops[run.op];
      const OpIndex found = index.op(op.id);
      result.push_back({found, index.variant(found, op.variants[run.variant].name)});
    }
    return result;
  }

  void offer(Sequence runs) {
    std::optional<Candidate> start = evaluate(ground_, std::move(runs));
    if (!start) return;
    std::optional<Candidate> sorted = evaluate(ground_, by_end(ground_, start->state));
    search_.add(sorted && *sorted < *start ? *std::move(sorted) : *std::move(start));
  }

  // A byte above a capacity costs as much as it costs to compute it, at first.
  double price() const {
    const auto time = static_cast<double>(std::max<int64_t>(1, problem_.baseline.time.count()));
    const auto bytes = static_cast<double>(std::max<int64_t>(1, problem_.baseline.peak.count()));
    return 4 * time / bytes;
  }

  place::Rules rules() const {
    const auto size = static_cast<int64_t>(problem_.graph.ops.size());
    return {.evaluations = 3 * std::clamp(kEvaluationsForRun * size, kLeastEvaluations,
                                          kMostEvaluations),
            .floor = bound_.count(),
            .moving = 0,
            .looks = 0.6,
            .round = 1,
            .patience = 4,
            .far_patience = 4,
            .tolerances = {0.012, 0.04, 0.004}};
  }

  Answer answer() {
    if (alone_.found() && alone_.actions.empty()) {
      alone_.actions = with_frees(first_graph_, std::exchange(alone_.runs, {}));
    }
    const bool alone = alone_.found();
    const Machine& machine = problem_.options.machine;
    const Nanos time = alone ? simulate(first_graph_, alone_.actions, machine).time : Nanos(0);
    Answer result = place::without_moves(std::move(alone_), time, bound_);
    if (search_.fits() && (!alone || Nanos(search_.best()->cost.time) < time)) {
      const auto& [best, cost] = *search_.best();
      result.set_found(Nanos(cost.time));
      result.actions = with_names(
          ground_.graph, lay_out(ground_, best.runs, best.late_frees).actions, ground_.machine);
    } else if (!alone) {
      // Plain training's peak is the smallest budget that is known for certain.
      const Bytes plain = problem_.baseline.peak;
      result.smallest_budget = std::min(plain, result.smallest_budget.value_or(plain));
      result.termination = blocking_ < 0 ? Termination::kTimeLimit : Termination::kInfeasible;
      result.blocking_op = blocking_ < 0 ? "" : problem_.graph.ops[blocking_].id;
    }
    return result;
  }

  const GraphProblem& problem_;
  SearchControl control_;
  const Ground ground_;
  Graph first_graph_;
  Answer alone_;
  Nanos bound_;
  OpIndex blocking_ = -1;
  place::Search<State> search_;
};

}  // namespace

Answer devices(const GraphProblem& problem) {
  if (has_devices(problem.options.machine)) return Devices(problem).run();
  // There is one device: the answer and its bound are those of graph_levels.
  return graph_levels::graph_levels(problem);
}

}  // namespace reprise::internal::devices
