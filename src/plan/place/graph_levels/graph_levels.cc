// This planner decides, for each value of a graph and each gap between two ops that touch it,
// whether the value stays on the device, is made again, or moves to another memory and comes back
// in time.
//
// The question is that of O. Beaumont, L. Eyraud-Dubois, A. Shilova, "Efficient combination of
// rematerialization and offloading for training DNNs", NeurIPS 2021, asked of graphs, for single
// values, and with the copies' semantics of Reprise (docs/memories.md).
//
//   flow.h     runs and lanes -> the exact plan: what leaves where, what comes back when
//   improve.h  local search over schedules and lanes with the flow as its judge (place/anneal.h)
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
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "plan/common/by_level.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/with_copies.h"
#include "plan/graph/planner.h"
#include "plan/graph/question.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/starts/starts.h"
#include "plan/place/flow.h"
#include "plan/place/graph_levels/improve.h"
#include "plan/place/graph_levels/planner.h"
#include "plan/place/lanes.h"
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
using place::RunList;
using schedule::Schedule;
using schedule::ScheduleModel;

namespace {

constexpr double kShareBound = 0.15;   // of the time, for the bound
constexpr double kShareAlone = 0.25;   // of the time, for the planner `graph`
constexpr double kShareStarts = 0.25;  // of what is left then, for schedules of other budgets
constexpr int kBudgets = 4;            // between the given one and that of plain training
constexpr size_t kFinalists = 2;       // candidates of a round
constexpr size_t kPool = 8;            // candidates that are kept between rounds
constexpr double kShareRound = 0.6;    // of the flows, for each round
constexpr std::array<double, 4> kTolerances = {0.6, 2.4, 1.2, 4.8};  // of the rounds in turn
constexpr size_t kPatience = 3;       // rounds that bring next to nothing, until the search ends
constexpr size_t kLongPatience = 9;   // the same, far from the bound
constexpr int64_t kFar = 100;         // as a part of the bound
constexpr size_t kSmall = 100;        // intervals
constexpr int64_t kGain = 5'000;      // a gain that is a smaller part of the time counts as none
constexpr double kShareMoving = 0.1;  // of the search, for plans that make nothing again
constexpr double kShareFirst = 0.4;   // of the rest, for a look at every start
constexpr int64_t kTouchesEvaluated = 200'000'000;  // over all flows of a search
constexpr int64_t kLeastEvaluations = 3'000, kMostEvaluations = 400'000;
constexpr int64_t kEvaluationsForInterval = 400;

class Search {
 public:
  explicit Search(const GraphProblem& problem)
      : problem_(problem),
        control_(problem.options, "graph_levels"),
        threads_(common::thread_count(problem.options.threads)),
        model_(problem.graph),
        changes_(model_),
        carrier_(problem.graph, problem.options.machine),
        bench_{model_,
               changes_,
               carrier_,
               movable_intervals(model_, true),
               movable_intervals(model_, false),
               problem.goal().count(),
               0,
               control_} {
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
    if (done()) return answer({});
    const Answer alone = without_copies();
    const bool is_open = !alone.found() || peak_of(alone.runs) > problem_.goal() ||
                         common::time_of(problem_.graph, alone.runs) > bound_.time;
    if (bound_.least_peak <= problem_.budget && is_open) {
      offer_others();
      improve_all();
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
    if (!starts_.empty() && control_.out_of_time()) return;
    if (std::optional<Candidate> start = evaluate(bench_, std::move(fates))) {
      consider(*start);
      starts_.push_back(*std::move(start));
    }
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

  std::pair<int64_t, int64_t> rank(const Candidate& c) const {
    return {std::max<int64_t>(0, c.cost.peak - bench_.budget), c.cost.time};
  }
  // A candidate that is less above the budget is a gain, and one that is faster by more than a
  // small part.
  static bool gains(const std::pair<int64_t, int64_t>& before,
                    const std::pair<int64_t, int64_t>& after) {
    if (before.first != after.first) return after.first < before.first;
    return before.second - after.second > before.second / kGain;
  }
  void sort() {
    std::stable_sort(starts_.begin(), starts_.end(),
                     [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
  }

  struct Round {
    double evaluations = 1;  // a share of evaluations()
    double tolerance = 0.6;
    bool again = true;
  };
  // Improves all of these at once on several threads, within a share of the time that is left.
  void improve_some(std::vector<Candidate>& candidates, double share, const Round& round) {
    if (candidates.empty()) return;
    const auto count = static_cast<double>(candidates.size());
    const auto threads = std::min<size_t>(candidates.size(), static_cast<size_t>(threads_));
    const SearchControl part = control_.part(share);
    const double turns = std::ceil(count / static_cast<double>(threads));
    Workbench bench{model_,        changes_,      carrier_,     bench_.movable,
                    bench_.others, bench_.budget, bench_.price, part};
    const auto evaluations_of_each =
        static_cast<int64_t>(round.evaluations * static_cast<double>(evaluations()) / count);
    const uint64_t seed = seed_;
    seed_ += candidates.size();
    common::for_each_by_level(
        {candidates.size()}, static_cast<int>(threads),
        [&](int thread, size_t c) {
          const double turn = std::floor(static_cast<double>(c) / static_cast<double>(threads));
          candidates[c] = improve(bench, std::move(candidates[c]),
                                  {.evaluations = evaluations_of_each,
                                   .share = 1 / (turns - turn),
                                   .seed = seed + c,
                                   .floor = bound_.time.count(),
                                   .again = round.again,
                                   .tolerance = round.tolerance,
                                   .report = [&, thread] {
                                     if (thread == 0) control_.report(-1);
                                   }});
        },
        [](size_t) { return true; });
  }

  void consider(const Candidate& candidate) {
    if (!smallest_ || candidate.cost.peak < smallest_->cost.peak) smallest_ = candidate;
    if (!bench_.fits(candidate)) return;
    if (!best_ || candidate.cost.time < best_->cost.time) best_ = candidate;
  }

  // A plan at all is worth more than the reserve.
  void use_reserve() {
    if (best_ || !smallest_ || bench_.budget == problem_.budget.count()) return;
    bench_.budget = problem_.budget.count();
    if (const auto again = evaluate(bench_, smallest_->fates)) consider(*again);
  }

  bool done() const {
    return control_.out_of_time() || (best_ && best_->cost.time <= bound_.time.count());
  }

  // Far from the bound it is worthwhile to go on for longer, if the graph is not small.
  size_t patience() const {
    const bool is_above_bound =
        !best_ || best_->cost.time - bound_.time.count() > bound_.time.count() / kFar;
    return is_above_bound && bench_.movable.size() > kSmall ? kLongPatience : kPatience;
  }

  void improve_all() {
    if (starts_.empty() || done()) return;
    std::vector<Candidate> moving{starts_.front()};
    improve_some(moving, kShareMoving, {.evaluations = kShareMoving, .again = false});
    consider(moving.front());
    if (done()) return;
    const std::vector<Candidate> fresh = starts_;
    improve_some(starts_, kShareFirst, {.evaluations = kShareFirst});
    for (const Candidate& start : starts_) consider(start);
    sort();
    for (size_t round = 0, idle = 0; idle < patience() && !done(); ++round) {
      const auto before = rank(starts_.front());
      std::vector<Candidate> some;
      for (const Candidate& start : starts_) {
        if (some.size() == kFinalists) break;
        if (some.empty() || rank(some.back()) != rank(start)) some.push_back(start);
      }
      if (round % 2 == 1) some.push_back(fresh[round / 2 % fresh.size()]);
      improve_some(
          some, 1,
          {.evaluations = kShareRound, .tolerance = kTolerances[round % kTolerances.size()]});
      for (Candidate& candidate : some) {
        consider(candidate);
        starts_.push_back(std::move(candidate));
      }
      sort();
      starts_.resize(std::min(starts_.size(), kPool));
      idle = gains(before, rank(starts_.front())) ? 0 : idle + 1;
    }
  }

  Bytes peak_of(const std::vector<Run>& runs) const {
    return simulate(problem_.graph, with_frees(problem_.graph, runs)).peak;
  }

  // Plans that leave the reserve come first, and then faster ones.
  bool is_better(const Candidate& candidate, const std::vector<Run>& runs) const {
    const Bytes goal = problem_.goal();
    const bool leaves = Bytes(candidate.cost.peak) <= goal, other_leaves = peak_of(runs) <= goal;
    if (leaves != other_leaves) return leaves;
    return Nanos(candidate.cost.time) < common::time_of(problem_.graph, runs);
  }

  Answer answer(const Answer& alone) {
    Answer result;
    result.lower_bound = bound_.time;
    result.search_memory = alone.search_memory;
    const bool recompute = alone.found();
    if (!best_ && !recompute) {
      const Bytes smallest = smallest_ ? Bytes(smallest_->cost.peak) : *alone.smallest_budget;
      result.smallest_budget =
          alone.smallest_budget ? std::min(smallest, *alone.smallest_budget) : smallest;
      if (bound_.least_peak > problem_.budget) {
        result.termination = Termination::kInfeasible;
        result.blocking_op = problem_.graph.ops[bound_.blocking_op].id;
      }
      return result;
    }
    const bool moved = best_ && (!recompute || is_better(*best_, alone.runs));
    if (moved) {
      schedule::ScheduleLedger ledger(model_);
      ledger.assign(best_->fates.schedule);
      RunList runs;
      ledger.list(runs.op_variants, runs.positions);
      Flow flow(model_, carrier_);
      result.set_found(Nanos(flow.build(runs, best_->fates.lanes, bench_.budget).time));
      result.actions = flow.actions();
    } else {
      result.set_found(common::time_of(problem_.graph, alone.runs));
      result.runs = alone.runs;
    }
    return result;
  }

  const GraphProblem& problem_;
  SearchControl control_;
  const int threads_;
  const ScheduleModel model_;
  const search::ScheduleMoves changes_;
  const Carrier carrier_;
  Workbench bench_;
  CopyBound bound_;
  std::vector<Candidate> starts_;
  std::optional<Candidate> best_, smallest_;
  uint64_t seed_ = 1;
};

}  // namespace

Answer graph_levels(const GraphProblem& problem) {
  if (!lanes_of(problem.options.machine).empty()) return Search(problem).run();
  // Nothing can move. The answer and its bound are those of the planner `graph`.
  GraphProblem alone = problem;
  alone.options.machine = {};
  Answer answer = search_graph(alone);
  if (answer.schedule_class.empty()) answer.schedule_class = "all";
  return answer;
}

}  // namespace reprise::internal::graph_levels
