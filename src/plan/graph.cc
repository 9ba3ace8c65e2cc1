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
#include "plan/graph_schedule.h"
#include "plan/graph_search.h"
#include "plan/planners.h"
#include "plan/search_control.h"

namespace reprise::internal {
namespace {

// Keeps the given values at one position, and drops what else is there until it is made again.
Schedule kept_at(const ScheduleModel& model, int32_t position, const std::vector<char>& kept) {
  Schedule schedule = model.keep_all();
  for (size_t g = 0; g < model.gaps().size(); ++g) {
    const Gap& gap = model.gaps()[g];
    if (gap.fixed || gap.begin >= position || gap.end <= position || kept[gap.value]) continue;
    schedule.gaps[g] = Keeping::kOnReplay;
  }
  return schedule;
}

// The first op that is not forward.
int32_t position_of_loss(const Graph& graph, const ScheduleModel& model) {
  const std::vector<Run>& plain = model.plain();
  const auto at = std::find_if(plain.begin(), plain.end(), [&](const Run& run) {
    return graph.ops[run.op].phase != Phase::kForward;
  });
  return static_cast<int32_t>(at - plain.begin());
}

// The values that forward ops read across the bounds of so many segments.
std::vector<char> between_segments(const Graph& graph, const ScheduleModel& model, int32_t loss,
                                   int32_t segments) {
  std::vector<int32_t> made(graph.values.size(), -1);
  std::vector<char> kept(graph.values.size(), 0);
  const auto segment_of = [&](int32_t position) {
    return static_cast<int64_t>(position) * segments / loss;
  };
  for (int32_t p = 0; p < loss; ++p) {
    const Run& run = model.plain()[p];
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    for (const ValueIndex value : variant.reads) {
      if (made[value] >= 0 && segment_of(made[value]) != segment_of(p)) kept[value] = 1;
    }
    for (const ValueIndex value : variant.writes) made[value] = p;
  }
  return kept;
}

void consider_starts(const ScheduleModel& model, const GraphBound& bound, GraphSearch& search) {
  const Graph& graph = model.graph();
  std::vector<Schedule> starts;
  for (const std::vector<ValueIndex>& kept : bound.kept) {
    std::vector<char> is_kept(graph.values.size(), 0);
    for (const ValueIndex value : kept) is_kept[value] = 1;
    starts.push_back(kept_at(model, bound.instant, is_kept));
  }
  search.consider_for_budget(starts);
  starts.assign(1, model.keep_all());
  const int32_t loss = position_of_loss(graph, model);
  for (int32_t segments = 2; segments <= loss; segments += 1 + segments / 3) {
    starts.push_back(kept_at(model, loss, between_segments(graph, model, loss, segments)));
  }
  search.consider(starts);
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
  consider_starts(model, bound, search);
  const bool impossible = bound.least_peak > problem.budget;
  search.shrink(impossible);
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
