// Plans of graphs: local search from the solutions of a relaxed problem, with a proven bound.
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
// Schedules are those of graph/schedule/schedule.h: the ops in the order of plain training, what is missing
// made again right before it is read. graph/schedule/ledger.h costs each exactly. The steps, in
// graph/question.cc but for the last. Where the graph has alternatives that leave other bits, they are first done for the
// graph without these; the schedule is one of the starts for the whole graph (graph/carry.h):
// 0. what cannot be part of a plan within the budget is left out (graph/possible.h); the rest of the
//    steps for what is left, and for the whole graph if that brings no plan;
// 1. the bound of graph/bound/bound.h, raised by graph/bound/split.h; if its peak is above the budget, no plan
//    exists;
// 2. starts: what the relaxed problem keeps at its best instant, mixes of two cuts
//    (graph/starts/starts.h), rungs in long rows (graph/starts/rungs.h), mixes at one peak after the other
//    (graph/starts/sections.h), cuts at prices of memory (graph/starts/prices.h), plain training, segments of
//    equally many forward ops, all with ops in the ways that suit the price of memory; repaired at
//    their peaks until they fit;
// 3. annealing of those that do not fit at a high price of memory; without a plan: of the peak alone
//    (graph/search/search.h);
// 4. annealing of the time by several walkers (graph/search/anneal.h), from the best starts, then from
//    fewer and fewer of the best plans, in longer and longer rounds, until the time is the bound or
//    next to it, or rounds bring nothing, or time is up; what is still far from the bound, again from
//    the starts, with twice the steps and hotter, as long as that brings something;
// 5. dtr.cc, whose schedules are of another kind, for the rare graph where it is better.
//
// Complexity: a change of a schedule costs the runs at the positions that it reaches, times values
// per run and the logarithm of the number of ops. Without a limit of time the same question has the
// same answer, with any number of threads.
//
// Not handled: orders of the forward ops that no put-off op comes to.
//
// Tests: oracle/graph_planner_test.cc (between the optimum and the budget),
// oracle/schedule_ledger_test.cc (costs are the simulator's), oracle/graph_carry_test.cc, and every graph planner's in
// property/graph_planner_test.cc.
#include <algorithm>
#include <memory>

#include "plan/common/admissible.h"
#include "plan/common/by_level.h"
#include "plan/common/candidates.h"
#include "plan/graph/carry.h"
#include "plan/graph/possible.h"
#include "plan/graph/question.h"
#include "plan/baselines/baselines.h"
#include "plan/graph/planner.h"
#include "plan/common/search_control.h"
#include "reprise/model/errors.h"

namespace reprise::internal::graph {

using baselines::consider_dtr;
using common::Candidates;
using common::SearchControl;
using common::restrict_exactness;
using common::thread_count;
using schedule::Schedule;
using schedule::ScheduleModel;
using search::FoundSchedule;

namespace {

// Of the time that is left after the starts, for a first plan without what is impossible.
constexpr double kForFirst = 0.5;
// Of all time, for the search without what is of other bits.
constexpr double kForExact = 0.5;

// A schedule with the graph that it is of.
struct Start {
  Graph graph;
  ScheduleModel model;
  std::optional<FoundSchedule> found;

  explicit Start(Graph of) : graph(std::move(of)), model(graph) {}

  // As one of another graph with these ops, and more.
  std::vector<Schedule> in(const ScheduleModel& other) const {
    std::optional<Schedule> schedule;
    if (found) schedule = carried_over(model, found->schedule, other);
    return schedule ? std::vector{*std::move(schedule)} : std::vector<Schedule>{};
  }

  std::vector<Run> runs_in(const Graph& other) const {
    return carried_over(graph, runs_of(model, found->schedule), other).value();
  }
};

// The best schedule without what leaves other bits, if the graph has such: few ways that are slow and small (a layer in
// parts) lead a search away from what many others do together. Null: there is none.
std::unique_ptr<const Start> find_exact(const GraphProblem& problem, int threads,
                                        const SearchControl& control) {
  const auto is_exact = [](const Op& op) {
    return std::ranges::all_of(op.variants, [](const Variant& variant) {
      return variant.exactness == Exactness::kBitwise;
    });
  };
  if (std::ranges::all_of(problem.graph.ops, is_exact)) return nullptr;
  std::unique_ptr<Start> start;
  try {
    start = std::make_unique<Start>(restrict_exactness(problem.graph, Exactness::kBitwise));
  } catch (const InputError&) {
    return nullptr;  // some op has no other way
  }
  SearchControl part = control.part(kForExact);
  start->found =
      find_schedule(start->model, problem.budget, problem.goal(), threads, {}, part, kForFirst)
          .best;
  return start;
}

// The best schedule of a graph without what cannot be part of a plan.
std::optional<GraphFinding> find_possible(const PossibleGraph& possible, const Start* start,
                                          const GraphProblem& problem, int threads,
                                          SearchControl& control, std::vector<Run>& runs) {
  const ScheduleModel model(possible.graph);
  GraphFinding found =
      find_schedule(model, problem.budget, problem.goal(), threads,
                    start ? start->in(model) : std::vector<Schedule>{}, control, kForFirst);
  if (!found.best) return std::nullopt;
  for (const Run& run : runs_of(model, found.best->schedule)) {
    runs.push_back(possible.runs[run.op][run.variant]);
  }
  return found;
}

}  // namespace

Answer search_graph(const GraphProblem& problem) {
  SearchControl control(problem.options, "graph");
  control.report(-1);
  const Graph& graph = problem.graph;
  const int threads = thread_count(problem.options.threads);
  std::vector<Run> runs;
  std::optional<GraphFinding> found;
  const std::unique_ptr<const Start> start = find_exact(problem, threads, control);
  if (const auto possible = leave_out_impossible(graph, problem.budget, control)) {
    found = find_possible(*possible, start.get(), problem, threads, control, runs);
  }
  if (!found) {
    const ScheduleModel model(graph);
    found = find_schedule(model, problem.budget, problem.goal(), threads,
                          start ? start->in(model) : std::vector<Schedule>{}, control);
    // A plan at all is worth more than the reserve.
    const bool fits = found->best || found->smallest.peak <= problem.budget.count();
    if (fits) runs = runs_of(model, found->best ? found->best->schedule : found->smallest.schedule);
  }
  Candidates candidates(graph, found->best ? problem.goal() : problem.budget);
  if (!runs.empty()) candidates.consider(std::move(runs));
  if (start && start->found) candidates.consider(start->runs_in(graph));
  if (!found->near) {
    consider_dtr(graph, candidates.fits() ? problem.goal() : problem.budget, candidates, control);
  }
  Answer answer;
  answer.lower_bound = found->bound.time;
  if (candidates.fits()) answer = candidates.answer(found->bound.time, false);
  answer.search_memory = found->memory;
  if (!candidates.fits()) {
    answer.smallest_budget = Bytes(found->smallest.peak);
    if (found->bound.least_peak > problem.budget) {
      answer.termination = Termination::kInfeasible;
      answer.blocking_op = graph.ops[found->bound.blocking_op].id;
    }
  }
  return answer;
}

}  // namespace reprise::internal::graph
