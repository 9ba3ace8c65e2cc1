// This file plans graphs by local search from the solutions of a relaxed problem, with a proven
// bound.
//
// | source                                                        | what is taken from it      |
// |---------------------------------------------------------------|----------------------------|
// | P. Jain et al., Checkmate, MLSys 2020, arXiv 1910.02653       | the problem; starts from a |
// |                                                               | relaxation, made feasible  |
// | B. Bartan et al., Moccasin, ICML 2023, arXiv 2304.14463       | a value is held or not     |
// |                                                               | between two uses           |
// | T. Chen et al., arXiv 1604.06174                              | starts: segments           |
// | S. Kirkpatrick et al., Optimization by simulated annealing,   | the search                 |
// | Science 220, 1983                                             |                            |
//
// Schedules are those of graph/schedule/schedule.h: the ops run in the order of plain training, and
// what is missing is made again right before it is read. graph/schedule/ledger.h costs each
// schedule exactly. Steps 2 to 5 are in graph/question.cc. All constants and switches are in
// graph/params.h.
//
// Some graphs have alternatives that leave other bits. Then the steps are first done for the graph
// without these alternatives, and the schedule that is found is one of the starts for the whole
// graph (graph/carry.h).
//
// 1. Variants that cannot be part of a plan within the budget are left out (graph/possible.h). The
//    other steps are done for the rest, and for the whole graph if the rest brings no plan.
// 2. The bound of graph/bound/bound.h is computed and raised by graph/bound/split.h. If its peak is
//    above the budget, there is no plan.
//    For a large graph, schedules with segments are looked at before, as all else may take all of
//    the time.
// 3. The starts are the rows of graph/starts/table.h. All of them use the variants that suit the
//    price of a byte. Each is repaired at its peaks until it fits.
// 4. Starts that do not fit are annealed at a high price of memory. Without a plan, the peak alone
//    is annealed (graph/search/search.h).
// 5. Several walkers anneal the time (graph/search/anneal.h). They begin with the best starts, and
//    go on with fewer and fewer of the best schedules, in longer and longer rounds. They end when
//    the time is that of the bound or near it, when rounds bring nothing, or when time is up. If
//    the time is then far from the bound, the starts are annealed again, longer and hotter, as long
//    as that brings something.
// 6. Schedules of dtr.cc are of another kind. They are tried for the rare graph where they are
//    better.
//
// Complexity: a change of a schedule costs the runs at the positions that it reaches, times values
// per run and the logarithm of the number of ops. Without a time limit the same question has the
// same answer, with any number of threads.
//
// Not handled: orders of the forward ops, other than those that come from putting ops off.
//
// Tests: oracle/graph_planner_test.cc (the plan lies between the optimum and the budget),
// oracle/graph_switches_test.cc (the same with parts switched off), oracle/schedule_ledger_test.cc
// (costs are the simulator's), oracle/graph_carry_test.cc, and property/graph_planner_test.cc,
// which runs on every planner of graphs.
#include <algorithm>
#include <limits>
#include <memory>

#include "plan/baselines/baselines.h"
#include "plan/common/admissible.h"
#include "plan/common/by_level.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "plan/graph/carry.h"
#include "plan/graph/planner.h"
#include "plan/graph/possible.h"
#include "plan/graph/question.h"
#include "reprise/model/errors.h"

namespace reprise::internal::graph {

using baselines::consider_dtr;
using common::Candidates;
using common::restrict_exactness;
using common::SearchControl;
using common::thread_count;
using schedule::Schedule;
using schedule::ScheduleModel;
using search::FoundSchedule;

namespace {

// A class of schedules in which every op has its first run at its place in plain training.
constexpr const char* kInTurn = "in_turn";

bool is_in_turn(const GraphProblem& problem) { return problem.options.schedule_class == kInTurn; }

// A SolvedGraph is a graph with the schedule that was found for it.
struct SolvedGraph {
  Graph graph;
  ScheduleModel model;
  std::optional<FoundSchedule> found;

  SolvedGraph(Graph of, bool in_turn) : graph(std::move(of)), model(graph, in_turn) {}

  // Returns the schedule as one of another graph, which has these ops and more.
  std::vector<Schedule> in(const ScheduleModel& other) const {
    std::optional<Schedule> schedule;
    if (found) schedule = carried_over(model, found->schedule, other);
    return schedule ? std::vector{*std::move(schedule)} : std::vector<Schedule>{};
  }

  std::vector<Run> runs_in(const Graph& other) const {
    return carried_over(graph, runs_of(model, found->schedule), other).value();
  }
};

// Finds the best schedule without variants that leave other bits. Returns null if the graph has no
// such variants. These variants are few, slow and small; a layer in parts is an example. They lead
// a search away from what many other ops do together.
std::unique_ptr<const SolvedGraph> find_exact(const GraphProblem& problem, int threads,
                                              const SearchControl& control,
                                              const GraphSearchParams& params) {
  if (!params.use.exact_first) return nullptr;
  const auto is_exact = [](const Op& op) {
    return std::ranges::all_of(op.variants, [](const Variant& variant) {
      return variant.exactness == Exactness::kBitwise;
    });
  };
  if (std::ranges::all_of(problem.graph.ops, is_exact)) return nullptr;
  std::unique_ptr<SolvedGraph> start;
  try {
    start = std::make_unique<SolvedGraph>(restrict_exactness(problem.graph, Exactness::kBitwise),
                                          is_in_turn(problem));
  } catch (const InputError&) {
    return nullptr;  // some op has no other variant
  }
  SearchControl part = control.part(params.share_for_exact);
  start->found = find_schedule(start->model, problem.budget, problem.goal(), threads, {}, part,
                               params, params.share_for_first)
                     .best;
  return start;
}

// Finds the best schedule without the variants that cannot be part of a plan.
GraphFinding find_possible(const PossibleGraph& possible, const SolvedGraph* start,
                           const GraphProblem& problem, int threads, SearchControl& control,
                           const GraphSearchParams& params, std::vector<Run>& runs) {
  const ScheduleModel model(possible.graph, is_in_turn(problem));
  GraphFinding found = find_schedule(model, problem.budget, problem.goal(), threads,
                                     start ? start->in(model) : std::vector<Schedule>{}, control,
                                     params, params.share_for_first);
  if (!found.best) return found;
  for (const Run& run : runs_of(model, found.best->schedule)) {
    runs.push_back(possible.runs[run.op][run.variant]);
  }
  return found;
}

}  // namespace

Answer search_graph(const GraphProblem& problem) {
  return search_graph(problem, GraphSearchParams{});
}

Answer search_graph(const GraphProblem& problem, const GraphSearchParams& params) {
  SearchControl control(problem.options, "graph");
  control.report(-1);
  const Graph& graph = problem.graph;
  const int threads = thread_count(problem.options.threads);
  std::vector<Run> runs;
  std::optional<GraphFinding> found;
  const std::unique_ptr<const SolvedGraph> start = find_exact(problem, threads, control, params);
  std::optional<PossibleGraph> possible;
  if (params.use.impossible) {
    possible =
        leave_out_impossible(graph, problem.budget, control.part(params.share_for_impossible));
  }
  int64_t smallest_possible = std::numeric_limits<int64_t>::max();
  if (possible) {
    found = find_possible(*possible, start.get(), problem, threads, control, params, runs);
    smallest_possible = found->smallest.peak;
    if (!found->best) found.reset();
  }
  if (!found) {
    const ScheduleModel model(graph, is_in_turn(problem));
    found = find_schedule(model, problem.budget, problem.goal(), threads,
                          start ? start->in(model) : std::vector<Schedule>{}, control, params);
    // A plan at all is worth more than the reserve.
    const bool fits = found->best || found->smallest.peak <= problem.budget.count();
    if (fits) runs = runs_of(model, found->best ? found->best->schedule : found->smallest.schedule);
  }
  Candidates candidates(graph, found->best ? problem.goal() : problem.budget);
  if (!runs.empty()) candidates.consider(std::move(runs));
  if (start && start->found) candidates.consider(start->runs_in(graph));
  if (params.use.dtr && !found->near) {
    consider_dtr(graph, candidates.fits() ? problem.goal() : problem.budget, candidates, control);
  }
  Answer answer;
  answer.lower_bound = found->bound.time;
  if (candidates.fits()) answer = candidates.answer(found->bound.time, false);
  answer.search_memory = found->memory;
  if (is_in_turn(problem)) answer.schedule_class = kInTurn;
  if (!candidates.fits()) {
    answer.smallest_budget = Bytes(std::min(found->smallest.peak, smallest_possible));
    if (found->bound.least_peak > problem.budget) {
      answer.termination = Termination::kInfeasible;
      answer.blocking_op = graph.ops[found->bound.blocking_op].id;
    }
  }
  return answer;
}

}  // namespace reprise::internal::graph
