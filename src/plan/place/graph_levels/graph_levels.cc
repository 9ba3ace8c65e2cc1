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
// Values that live in another memory between steps (place/homes.h) are among those that it decides about:
// each group of them stays on the device or moves. The bound and the planner `graph` see the step without
// these values, with room for what each op needs of them. Starts are then schedules of smaller budgets,
// too, which leave room for what stays. Without a budget, nothing stays that may move.
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
constexpr int kBudgetsBelow = 4;       // the given one, which leave room for values that stay
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
        machine_(place::beside_homes(problem.graph, problem.options.machine)),
        lane_times_(problem.graph, machine_),
        homes_(lane_times_.homes().groups() == 0 ? std::nullopt
                                                 : std::optional<WithoutHomes>(problem.graph)),
        model_(homes_ ? homes_->graph : problem.graph),
        changes_(model_),
        bench_{model_,
               changes_,
               lane_times_,
               movable_intervals(model_, true),
               movable_intervals(model_, false),
               problem.goal().count(),
               0},
        search_(control_, [this](Candidate start, const WalkLimits& limits) {
          return improve(bench_, std::move(start), limits);
        }) {
    const double rerun = std::max(1.0, changes_.total_rerun_time);
    const auto peak = static_cast<double>(std::max<int64_t>(1, problem.baseline.peak.count()));
    bench_.price = kPriceOfExcess * rerun / peak;
    if (homes_ && !problem.options.budget.unlimited()) {
      bench_.homes = homes_that_may_stay(model_, lane_times_.homes());
    }
  }

  Answer run() {
    control_.report(-1);
    SearchControl for_bound = control_.part(kShareBound);
    bound_ = bound_with_copies(seen(), problem_.budget, machine_, for_bound);
    bench_.price = std::max(bench_.price, kPriceOfExcess * bound_.places.price);
    offer_moving();
    if (search_.done(bound_.time.count())) return answer({});
    const Alone alone = without_copies();
    const bool is_open = !alone.answer.found() || Bytes(alone.cost.peak) > problem_.goal() ||
                         Nanos(alone.cost.time) > bound_.time;
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

  // The graph without its values that have a home elsewhere, and what bounds and first schedules see of it.
  struct WithoutHomes {
    explicit WithoutHomes(const Graph& of)
        : graph(place::without_homes(of)), seen(place::with_needs(of)), model(seen) {}
    Graph graph, seen;
    ScheduleModel model;  // of what is seen; its schedules are those of the graph
  };

  const Graph& seen() const { return homes_ ? homes_->seen : problem_.graph; }

  // An answer of the planner `graph`, where only what has a home elsewhere moves.
  struct Alone {
    Answer answer;
    FlowCost cost = {};
  };

  Alone without_copies() const {
    GraphProblem asked{seen(), problem_.baseline, problem_.budget, problem_.options};
    asked.options.machine = {};
    asked.options.time_limit = common::part_of(problem_.options.time_limit, kShareAlone);
    Alone alone{search_graph(asked)};
    if (!alone.answer.found()) return alone;
    const std::vector<Run>& runs = alone.answer.runs;
    if (!homes_) {
      alone.cost.time = common::time_of(problem_.graph, runs).count();
      alone.cost.peak = simulate(problem_.graph, with_frees(problem_.graph, runs)).peak.count();
      return alone;
    }
    place::RunList list;
    for (const Run& run : runs) {
      list.op_variants.push_back(model_.op_variant_of(run.op, run.variant));
    }
    list.positions.assign(runs.size(), 0);  // No interval has a lane.
    const Bytes peak = simulate(seen(), with_frees(seen(), runs)).peak;
    const Bytes goal = peak <= problem_.goal() ? problem_.goal() : problem_.budget;
    Flow flow(model_, lane_times_);
    alone.cost = flow.build(list, without_lanes(bench_), goal.count());
    alone.answer.runs.clear();
    alone.answer.actions = flow.actions();
    return alone;
  }

  void offer(Fates fates) {
    if (search_.best() && control_.out_of_time()) return;
    auto start = evaluate(bench_, std::move(fates));
    if (start) search_.add(with_homes_that_pay(bench_, *std::move(start), control_));
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
    const int64_t most = bench_.budget, high = std::max(most, problem_.baseline.peak.count());
    std::vector<int64_t> budgets;  // ascending
    if (homes_) {
      const int64_t low = std::max(bound_.least_peak.count(), most - bytes_of_homes());
      for (int b = 0; b < kBudgetsBelow && low < most; ++b) {
        budgets.push_back(low + (most - low) / kBudgetsBelow * b);
      }
    }
    for (int b = 0; b < kBudgets; ++b) budgets.push_back(most + (high - most) / kBudgets * b);
    const ScheduleModel& model = homes_ ? homes_->model : model_;
    std::vector<Schedule> seeds;
    for (size_t b = budgets.size(); b-- > 0;) {
      const Bytes budget(budgets[b]);
      SearchControl part = for_starts.part(1.0 / static_cast<double>(b + 1));
      const GraphFinding finding =
          find_schedule(model, budget, budget, threads_, seeds, part, params);
      if (!finding.best) continue;
      seeds = {finding.best->schedule};
      offer({finding.best->schedule, lanes});
    }
  }

  int64_t bytes_of_homes() const {
    Bytes sum;
    for (const Value& value : problem_.graph.values) {
      if (!starts_on_device(value) && value.kind == ValueKind::kInput) sum += value.bytes;
    }
    return sum.count();
  }

  int64_t evaluations() const {
    int64_t touches = 0;
    for (const Op& op : problem_.graph.ops) {
      touches += static_cast<int64_t>(2 + op.variants.front().reads.size() +
                                      op.variants.front().writes.size());
    }
    const auto intervals = static_cast<int64_t>(bench_.movable.size() + bench_.homes.size());
    return std::min(std::clamp(kTouchesEvaluated / std::max<int64_t>(1, touches), kLeastEvaluations,
                               kMostEvaluations),
                    std::max(kLeastEvaluations, kEvaluationsForInterval * intervals));
  }

  place::Rules rules() const {
    return {.evaluations = evaluations(),
            .floor = bound_.time.count(),
            .patience = 3,
            .far_patience = bench_.movable.size() > kSmall && !homes_ ? size_t{9} : size_t{3},
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

  // Plans that leave the reserve come first, and then faster ones.
  bool is_better(const FlowCost& cost, const FlowCost& than) const {
    const Bytes goal = problem_.goal();
    const bool leaves = Bytes(cost.peak) <= goal, other_leaves = Bytes(than.peak) <= goal;
    return leaves != other_leaves ? leaves : cost.time < than.time;
  }

  Answer answer(const Alone& alone) const {
    Answer result = place::without_moves(alone.answer, Nanos(alone.cost.time), bound_.time);
    if (!search_.best()) return result;
    Flow flow(model_, lane_times_);
    const FlowCost cost = *build(bench_, search_.best()->state, flow);
    if (!search_.fits()) {
      if (alone.answer.found()) return result;
      const Bytes peak(cost.peak);
      result.smallest_budget = std::min(peak, alone.answer.smallest_budget.value_or(peak));
      result.termination = Termination::kTimeLimit;
      result.blocking_op.clear();
      if (bound_.least_peak > problem_.budget) {
        result.termination = Termination::kInfeasible;
        result.blocking_op = problem_.graph.ops[bound_.blocking_op].id;
      }
    } else if (!alone.answer.found() || is_better(cost, alone.cost)) {
      result.runs.clear();
      result.set_found(Nanos(cost.time));
      result.actions = flow.actions();
    }
    return result;
  }

  const GraphProblem& problem_;
  SearchControl control_;
  const int threads_;
  const Machine machine_;  // with the capacities beside what lives there
  const LaneTimes lane_times_;
  const std::optional<WithoutHomes> homes_;  // none if all homes are the device
  const ScheduleModel model_;
  const search::ScheduleMoves changes_;
  Workbench bench_;
  CopyBound bound_;
  place::Search<Fates> search_;
};

}  // namespace

Answer graph_levels(const GraphProblem& problem) {
  const bool moves = !lanes_of(problem.options.machine).empty() || has_homes(problem.graph);
  if (moves) return Levels(problem).run();
  // Nothing can move. The answer and its bound are those of the planner `graph`.
  GraphProblem alone = problem;
  alone.options.machine = {};
  Answer answer = search_graph(alone);
  if (answer.schedule_class.empty()) answer.schedule_class = "all";
  return answer;
}

}  // namespace reprise::internal::graph_levels
