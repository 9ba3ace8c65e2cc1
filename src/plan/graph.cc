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
Schedule kept_at(const ScheduleWalk& walk, int32_t position, const std::vector<char>& kept) {
  Schedule schedule = walk.keep_all();
  for (size_t g = 0; g < walk.gaps().size(); ++g) {
    const Gap& gap = walk.gaps()[g];
    if (gap.fixed || gap.begin >= position || gap.end <= position || kept[gap.value]) continue;
    schedule.gaps[g] = Keeping::kOnReplay;
  }
  return schedule;
}

// The first op that is not forward.
int32_t position_of_loss(const Graph& graph, const ScheduleWalk& walk) {
  const std::vector<Run>& plain = walk.plain();
  const auto at = std::find_if(plain.begin(), plain.end(), [&](const Run& run) {
    return graph.ops[run.op].phase != Phase::kForward;
  });
  return static_cast<int32_t>(at - plain.begin());
}

// The values that forward ops read across the bounds of so many segments.
std::vector<char> between_segments(const Graph& graph, const ScheduleWalk& walk, int32_t loss,
                                   int32_t segments) {
  std::vector<int32_t> made(graph.values.size(), -1);
  std::vector<char> kept(graph.values.size(), 0);
  const auto segment_of = [&](int32_t position) {
    return static_cast<int64_t>(position) * segments / loss;
  };
  for (int32_t p = 0; p < loss; ++p) {
    const Run& run = walk.plain()[p];
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    for (const ValueIndex value : variant.reads) {
      if (made[value] >= 0 && segment_of(made[value]) != segment_of(p)) kept[value] = 1;
    }
    for (const ValueIndex value : variant.writes) made[value] = p;
  }
  return kept;
}

void consider_starts(const Graph& graph, const GraphBound& bound, GraphSearch& search,
                     const SearchControl& control) {
  const ScheduleWalk& walk = search.walk();
  for (const std::vector<ValueIndex>& kept : bound.kept) {
    std::vector<char> is_kept(graph.values.size(), 0);
    for (const ValueIndex value : kept) is_kept[value] = 1;
    search.consider_for_budget(kept_at(walk, bound.instant, is_kept));
  }
  search.consider(walk.keep_all());
  const int32_t loss = position_of_loss(graph, walk);
  for (int32_t segments = 2; segments <= loss; segments += 1 + segments / 3) {
    if (control.out_of_time()) return;
    search.consider(kept_at(walk, loss, between_segments(graph, walk, loss, segments)));
  }
}

}  // namespace

Answer search_graph(const GraphProblem& problem) {
  SearchControl control(problem.options, "graph");
  control.report(-1);
  const Graph& graph = problem.graph;
  GraphSearch search(graph, problem.budget.count(), control);
  SearchControl first = control.part(0.3);
  const GraphBound bound = bound_graph(graph, problem.budget, first);
  Answer answer;
  answer.lower_bound = bound.time;
  if (search.best() && search.best()->time == bound.time.count()) {
    answer.runs = search.best()->runs;
    answer.termination = Termination::kOptimal;
    return answer;
  }
  consider_starts(graph, bound, search, control.part(0.4));
  const bool impossible = bound.least_peak > problem.budget;
  search.shrink(impossible);
  search.improve(bound.time.count());
  Candidates candidates(graph, problem.budget);
  if (search.best()) candidates.consider(search.best()->runs);
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
