// This planner decides, for each value of a graph and each gap between two ops that touch it,
// whether the value stays on the device, is made again, or moves to another memory and comes back
// in time.
//
// The question is that of O. Beaumont, L. Eyraud-Dubois, A. Shilova, "Efficient combination of
// rematerialization and offloading for training DNNs", NeurIPS 2021, asked of graphs, for single
// values, and with the copies' semantics of Reprise (docs/memories.md).
//
//   flow.h     runs and lanes -> the exact plan: what leaves where, what comes back when
//   improve.h  the changes of a walk over schedules and lanes, with the flow as its judge
//   search.h   the rounds of walks
//   graph/bound/with_copies.h   a time that no plan with copies beats, from single instants
//
// The search begins with plain training, where everything may move; with schedules of the planner
// `graph` for several budgets, from the given one up to that of plain training, where everything
// that they keep may move; and with what the cut of the bound keeps, moves and makes again. So the
// answer is never slower than that of `graph` in kShareAlone of the time, and never slower than
// moving alone in the order of the flow.
//
// Complexity: a flow takes O(values of all runs + gaps * log gaps); there are up to
// kMostEvaluations.
//
// Does not handle: memories that no channel joins with the device directly; copies from one memory
// behind the device to another; other orders of the ops than those of the planner `graph`. Not
// proven: the search has no guarantee but the bound.
//
// Tests:
//   oracle/graph_levels_test.cc: against every plan with copies of small graphs; the bound
//   property/graph_levels_test.cc: never slower than recomputing alone or moving alone; capacities
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "plan/common/by_level.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/with_copies.h"
#include "plan/graph/planner.h"
#include "plan/graph/question.h"
#include "plan/graph/starts/starts.h"
#include "plan/place/flow.h"
#include "plan/place/graph_levels/improve.h"
#include "plan/place/graph_levels/planner.h"
#include "plan/place/lanes.h"
#include "plan/place/search.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::graph_levels {

using bound::bound_with_copies;
using bound::CopyBound;
using common::SearchControl;
using graph::find_schedule;
using graph::GraphFinding;
using graph::GraphSearchParams;
using graph::search_graph;
using place::Flow;
using place::lanes_of;
using schedule::Schedule;
using schedule::ScheduleModel;

namespace {

constexpr double kShareBound = 0.15;   // of the time, for the bound
constexpr double kShareAlone = 0.25;   // of the time, for the planner `graph`
constexpr double kShareStarts = 0.25;  // of what is left then, for schedules of other budgets
constexpr int kBudgets = 4;            // between the given one and that of plain training
constexpr size_t kSmall = 100;         // intervals
constexpr int64_t kTouchesEvaluated = 200'000'000;  // over all flows of a search
constexpr int64_t kLeastEvaluations = 3'000, kMostEvaluations = 400'000;
constexpr int64_t kEvaluationsForInterval = 400;

class Levels {
 public:
  explicit Levels(const GraphProblem& problem)
      : problem_(problem),
        control_(problem.options, "graph_levels"),
        threads_(common::thread_count(problem.options.threads)),
        model_(problem.graph),
        changes_(model_),
        lane_times_(problem.graph, problem.options.machine),
        bench_{model_,
               changes_,
               lane_times_,
               movable_intervals(model_, true),
               movable_intervals(model_, false),
               problem.goal().count(),
               0},
        search_(control_, [this](Candidate start, const Effort& effort) {
          return improve(bench_, std::move(start), effort);
        }) {
    const double rerun = std::max(1.0, changes_.total_rerun_time);
    const auto peak = static_cast<double>(std::max<int64_t>(1, problem.baseline.peak.count()));
    bench_.price = kPriceOfExcess * rerun / peak;
  }

  Answer run() {
    control_.report(-1);
    SearchControl for_bound = control_.part(kShareBound);
    bound_ =
        bound_with_copies(problem_.graph, problem_.budget, problem_.options.machine, for_bound);
    bench_.price = std::max(bench_.price, kPriceOfExcess * bound_.places.price);
    offer_moving();
    if (search_.done(bound_.time.count())) return answer({});
    const Answer alone = without_copies();
    const bool is_open = !alone.found() || peak_of(alone.runs) > problem_.goal() ||
                         common::time_of(problem_.graph, alone.runs) > bound_.time;
    if (bound_.least_peak <= problem_.budget && is_open) {
      offer_others();
      search_.run(rules());
      use_reserve();
    }
    return answer(alone);
  }

 private:
  static constexpr double kPriceOfExcess = 4;
  static constexpr double kDearByte = 1e9;  // in time: the smallest variants are the cheapest

  Answer without_copies() const {
    GraphProblem alone = problem_;
    alone.options.machine = {};
    alone.options.time_limit = common::part_of(problem_.options.time_limit, kShareAlone);
    return search_graph(alone);
  }

  void offer(Fates fates) {
    if (search_.best() && control_.out_of_time()) return;
    if (auto start = evaluate(bench_, std::move(fates))) search_.add(*std::move(start));
  }

  // Plain training, where everything may move.
  void offer_moving() {
    offer({model_.keep_all(), lanes_for_long_gaps(bench_)});
    if (model_.lean() != model_.keep_all()) offer({model_.lean(), lanes_for_long_gaps(bench_)});
  }

  void offer_others() {
    const std::vector<int8_t> lanes = lanes_for_long_gaps(bench_);
    const Schedule small = starts::cheapest_variants(model_, kDearByte);
    if (small != model_.lean()) offer({small, lanes});
    if (bound_.instant >= 0) {
      std::vector<char> kept(problem_.graph.values.size(), 0);
      for (const ValueIndex value : bound_.places.here) kept[value] = 1;
      for (const ValueIndex value : bound_.places.away) kept[value] = 1;
      offer({starts::kept_at(model_, model_.lean(), bound_.instant, kept), lanes});
    }
    const SearchControl for_starts = control_.part(kShareStarts);
    GraphSearchParams params;
    params.bound.use.cases = params.bound.use.stretches = params.bound.use.pairs = false;
    params.search.use.later_courses = false;
    params.search.patience = 1;  // A start need not be the best of its budget.
    params.search.least_patience_of_small = params.search.most_patience_of_small = 2;
    const int64_t low = bench_.budget;
    const int64_t high = std::max(low, problem_.baseline.peak.count());
    std::vector<Schedule> seeds;
    for (int b = kBudgets - 1; b >= 0; --b) {
      const Bytes budget(low + (high - low) / kBudgets * b);
      SearchControl part = for_starts.part(1.0 / (b + 1));
      const GraphFinding finding =
          find_schedule(model_, budget, budget, threads_, seeds, part, params);
      if (!finding.best) continue;
      seeds = {finding.best->schedule};
      offer({finding.best->schedule, lanes});
    }
  }

  int64_t evaluations() const {
    int64_t touches = 0;
    for (const Op& op : problem_.graph.ops) {
      touches += static_cast<int64_t>(2 + op.variants.front().reads.size() +
                                      op.variants.front().writes.size());
    }
    const auto intervals = static_cast<int64_t>(bench_.movable.size());
    return std::min(std::clamp(kTouchesEvaluated / std::max<int64_t>(1, touches), kLeastEvaluations,
                               kMostEvaluations),
                    std::max(kLeastEvaluations, kEvaluationsForInterval * intervals));
  }

  place::Rules rules() const {
    return {.evaluations = evaluations(),
            .floor = bound_.time.count(),
            .patience = 3,
            .far_patience = bench_.movable.size() > kSmall ? size_t{9} : size_t{3},
            .gain = 5'000,
            .tolerances = {0.6, 2.4, 1.2, 4.8},
            .threads = threads_};
  }

  // A plan at all is worth more than the reserve.
  void use_reserve() {
    if (search_.fits() || !search_.best() || bench_.budget == problem_.budget.count()) return;
    bench_.budget = problem_.budget.count();
    if (const auto again = evaluate(bench_, search_.best()->state)) search_.consider(*again);
  }

  Bytes peak_of(const std::vector<Run>& runs) const {
    return simulate(problem_.graph, with_bound_frees(problem_.graph, runs)).peak;
  }

  // Plans that leave the reserve come first, and then faster ones.
  bool is_better(const FlowCost& cost, const std::vector<Run>& runs) const {
    const Bytes goal = problem_.goal();
    const bool leaves = Bytes(cost.peak) <= goal, other_leaves = peak_of(runs) <= goal;
    if (leaves != other_leaves) return leaves;
    return Nanos(cost.time) < common::time_of(problem_.graph, runs);
  }

  Answer answer(const Answer& alone) const {
    const Nanos time = common::time_of(problem_.graph, alone.runs);
    Answer result = place::without_moves(alone, time, bound_.time);
    if (!search_.best()) return result;
    Flow flow(model_, lane_times_);
    const FlowCost cost = *build(bench_, search_.best()->state, flow);
    if (!search_.fits()) {
      if (alone.found()) return result;
      const Bytes peak(cost.peak);
      result.smallest_budget = std::min(peak, alone.smallest_budget.value_or(peak));
      result.termination = Termination::kTimeLimit;
      result.blocking_op.clear();
      if (bound_.least_peak > problem_.budget) {
        result.termination = Termination::kInfeasible;
        result.blocking_op = problem_.graph.ops[bound_.blocking_op].id;
      }
    } else if (!alone.found() || is_better(cost, alone.runs)) {
      result.runs.clear();
      result.set_found(Nanos(cost.time));
      result.actions = flow.actions();
    }
    return result;
  }

  const GraphProblem& problem_;
  SearchControl control_;
  const int threads_;
  const ScheduleModel model_;
  const search::ScheduleMoves changes_;
  const LaneTimes lane_times_;
  Workbench bench_;
  CopyBound bound_;
  place::Search<Fates> search_;
};

}  // namespace

Answer graph_levels(const GraphProblem& problem) {
  if (!lanes_of(problem.options.machine).empty()) return Levels(problem).run();
  // Nothing can move. The answer and its bound are those of the planner `graph`.
  GraphProblem alone = problem;
  alone.options.machine = {};
  Answer answer = search_graph(alone);
  if (answer.schedule_class.empty()) answer.schedule_class = "all";
  return answer;
}

}  // namespace reprise::internal::graph_levels
