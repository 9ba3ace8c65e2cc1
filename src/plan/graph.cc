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
// Schedules are those of graph_schedule.h: the ops in the order of plain training, what is missing
// made again right before it is read. Each is costed exactly. The steps:
// 1. the bound of graph_bound.h; if its peak is above the budget, no plan exists;
// 2. starts: plain training, what the relaxed problem keeps at its best instant, and segments of
//    equally many forward ops; each repaired by drops at its peak until it fits;
// 3. without a plan: annealing of the peak alone;
// 4. annealing of the time, from the best starts, then again from the best plan, until its time is
//    the bound, or several rounds bring nothing, or time is up;
// 5. dtr.cc, whose schedules are of another kind, for the rare graph where it is better.
//
// Complexity: O(runs * values per run) for each schedule that is looked at. Without a limit of time
// the same question has the same answer.
//
// Not handled: orders of the forward ops that no put-off op comes to.
//
// Tests: oracle/graph_planner_test.cc (between the optimum and the budget), and every graph
// planner's in property/graph_planner_test.cc.
#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "plan/candidates.h"
#include "plan/graph_bound.h"
#include "plan/graph_facts.h"
#include "plan/graph_prices.h"
#include "plan/graph_schedule.h"
#include "plan/graph_search.h"
#include "plan/graph_starts.h"
#include "plan/planners.h"
#include "plan/search_control.h"

namespace reprise::internal {
namespace {

void consider_starts(const ScheduleModel& model, Bytes budget, const GraphBound& bound,
                     GraphSearch& search, const SearchControl& control) {
  const Graph& graph = model.graph();
  std::vector<Schedule> starts;
  for (const std::vector<ValueIndex>& kept : bound.kept) {
    std::vector<char> is_kept(graph.values.size(), 0);
    for (const ValueIndex value : kept) is_kept[value] = 1;
    starts.push_back(kept_at(model, bound.instant, is_kept));
  }
  search.consider_for_budget(starts);
  const GraphFacts facts(graph);
  search.consider_for_budget(
      schedules_at_prices(model, facts, budget, bound.time, search.price_of_excess(), control));
  if (search.is_near(bound.time.count())) return;
  search.consider(schedules_of_segments(model));
}

int threads_of(const PlanOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

Answer search_graph(const GraphProblem& problem) {
  SearchControl control(problem.options, "graph");
  control.report(-1);
  const Graph& graph = problem.graph;
  const ScheduleModel model(graph);
  GraphSearch search(model, problem.budget.count(), threads_of(problem.options), control);
  SearchControl first = control.part(0.3);
  const GraphBound bound = bound_graph(graph, problem.budget, first);
  Answer answer;
  answer.lower_bound = bound.time;
  if (search.best() && search.best()->time == bound.time.count()) {
    answer.runs = search.runs_of_best();
    answer.termination = Termination::kOptimal;
    return answer;
  }
  consider_starts(model, problem.budget, bound, search, control.part(0.3));
  const bool impossible = bound.least_peak > problem.budget;
  search.shrink(bound.least_peak.count());
  search.improve(bound.time.count());
  Candidates candidates(graph, problem.budget);
  if (search.best()) candidates.consider(search.runs_of_best());
  consider_dtr(graph, problem.budget, candidates, control);
  if (candidates.fits()) answer = candidates.answer(bound.time, false);
  answer.search_memory = search.memory();
  if (candidates.fits()) return answer;
  if (impossible) {
    answer.termination = Termination::kInfeasible;
    answer.smallest_budget = Bytes(search.smallest().peak);
    answer.blocking_op = graph.ops[bound.blocking_op].id;
  }
  return answer;
}

}  // namespace reprise::internal
