// clang-format off
// This planner decides, for each value of a chain, whether it stays on the device, is made again, or
// moves to another memory and comes back in time.
//
// The question is that of O. Beaumont, L. Eyraud-Dubois, A. Shilova, "Efficient combination of
// rematerialization and offloading for training DNNs", NeurIPS 2021 (POFO), with the copies'
// semantics of Reprise (docs/planners/levels.md). POFO counts memory in slots and bandwidth in a
// fluid model. Here nothing is rounded, and the judge of every step is the exact plan:
//
//   choices.h   what happens to each stage and boundary: kept with an option or swept, a lane or none
//   segments.h  the fastest backward of a swept stretch in m bytes (the recurrence of plan/chain)
//   flow.h      runs and lanes -> the exact plan: what leaves where, what comes back when
//   improve.h   the changes of a walk over the choices, with the flow as its judge
//   place/search.h   the walks from all starts, and from the best ones
//   graph/bound/with_copies.h   a time that no plan with copies beats, from single instants
//
// The search begins with three plans: everything is kept and may move; the best plan of the planner
// `chain`, which moves nothing; and the same where everything that it keeps may move. So the answer
// is never slower than that of `chain` in kChainShare of the time, and never slower than moving
// alone in the order of the flow. Where none of the three fits, it begins with plans in which a part
// of the stages runs again and the others may move.
//
// Complexity: a flow takes O(values of all runs + gaps * log gaps + the runs between copies back
// and their uses); there are up to kMostEvaluations of them.
//
// Assumes: every forward may run again. Does not handle: memories that no channel joins with the
// device directly; copies of values that are made again behind the loss. Not proven: the search has
// no guarantee but the bound.
//
// Tests:
//   oracle/levels_test.cc: against every plan with copies of small chains; bounds below the optimum
//   oracle/accounts_test.cc: time and bytes of plans with copies, for any durations
//   property/levels_test.cc: never slower than recomputing alone or moving alone; capacities
// clang-format on
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "plan/chain/planner.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/improve.h"
#include "plan/place/levels/judge.h"
#include "plan/place/levels/planner.h"
#include "plan/place/search.h"

namespace reprise::internal::levels {

namespace {

constexpr size_t kWindow = 24;        // the most stages of a segment
constexpr double kShareChain = 0.2;   // of the time, for the best plan without copies
constexpr double kShareLimit = 0.05;  // of the time, for the bound
constexpr double kTolerance = 0.0015;
constexpr size_t kMixedParts = 12;    // of a chain, in starts of both
constexpr size_t kMostMixed = 4;      // of these starts are looked at
constexpr double kReserve = 0.1;      // of the time, for all that has no clock
constexpr int64_t kRunsEvaluated = 25'000'000;  // over all flows of a search
constexpr int64_t kFewestFlows = 2'000, kMostFlows = 200'000;
constexpr int64_t kFlowsForStage = 6'800;  // at most

// Lets everything move that can.
Choices all_move(Choices choices) {
  for (StageChoice& choice : choices) choice.saved_lane = choice.input_lane = 0;
  return choices;
}

class ChainLevels {
 public:
  ChainLevels(const ChainProblem& problem, bool again, const char* planner)
      : problem_(problem),
        again_(again),
        stages_(problem.chain.stages.size()),
        judge_(problem, std::min(kWindow, stages_), planner),
        control_(judge_.control().part(1 - kReserve)),
        search_(control_, [this](Candidate start, const place::WalkLimits& limits) {
          return improve(judge_, std::move(start), limits);
        }) {}

  // The answer is the faster one of the search's and of the best plan without copies.
  Answer run() {
    const Answer alone = again_ ? without_copies() : Answer{};
    collect(alone);
    search_.run(rules());
    if (search_.best()) judge_.consider(*search_.best());
    Answer moved = judge_.answer();
    moved.search_memory = alone.search_memory;
    if (!again_) return moved;
    const Nanos time = common::time_of(problem_.graph, alone.runs);
    const std::optional<int64_t> best = judge_.best_time();
    if (best && (!alone.found() || Nanos(*best) < time)) return moved;
    Answer answer = place::without_moves(alone, time, moved.lower_bound);
    if (!alone.found() && moved.smallest_budget &&
        (!alone.smallest_budget || *moved.smallest_budget < *alone.smallest_budget)) {
      answer.smallest_budget = moved.smallest_budget;
      answer.blocking_op = moved.blocking_op;
    }
    return answer;
  }

 private:
  // Returns the best plan without copies, whose class also has plans that choices cannot say.
  Answer without_copies() const {
    ChainProblem alone = problem_;
    alone.options.machine = {};
    alone.options.time_limit = common::part_of(problem_.options.time_limit, kShareChain);
    return chain::exact_chain(alone);
  }

  void offer(Choices choices) {
    const std::optional<place::PlanCost> cost = judge_.cost_of(choices);
    if (!cost) return;
    Candidate start{std::move(choices), *cost};
    if (start.cost.fits()) {
      search_.add(std::move(start));
    } else {
      search_.consider(start);
    }
  }

  // Every fourth start or so ends at a plan that is longer by half a percent, so that the search
  // goes on with several. Moving alone is soon at its end, and sometimes the best.
  place::Rules rules() {
    const auto runs = static_cast<int64_t>(2 * stages_ + 1);
    const int64_t most = std::max(kFewestFlows, kFlowsForStage * static_cast<int64_t>(stages_));
    return {.evaluations =
                std::min(std::clamp(kRunsEvaluated / runs, kFewestFlows, kMostFlows), most),
            .floor = judge_.bound(kShareLimit).count(),
            .moving = again_ ? 0.1 : 0,
            .again = again_,
            .round = 0.5,
            .finalists = 3,
            .most_rounds = 1,
            .tolerances = {kTolerance},
            .seed = 0};
  }

  void collect(const Answer& alone) {
    offer(all_move(Choices(stages_)));
    if (alone.found()) {
      const Choices choices = choices_of(problem_.graph, ChainIndex{stages_}, alone.runs);
      offer(choices);
      offer(all_move(choices));
    }
    if (search_.fits() || !again_) return;
    collect_mixed();
    search_.keep_best(kMostMixed);
  }

  // Neither moving alone nor recomputing alone fits, but some of both may: the stages between two
  // boundaries run again in groups and the others are kept and may move, or the reverse.
  void collect_mixed() {
    const size_t step = std::max<size_t>(1, stages_ / kMixedParts);
    for (size_t group = 1; group <= judge_.segments().window(); group *= 2) {
      for (size_t begin = 0; begin < stages_; begin += step) {
        for (size_t end = begin + step; end < stages_ + step; end += step) {
          for (const bool inside : {true, false}) {
            offer(mixed(begin, std::min(end, stages_), inside, group));
            if (control_.out_of_time()) return;
          }
        }
      }
    }
  }

  Choices mixed(size_t begin, size_t end, bool inside, size_t group) const {
    Choices choices = all_move(Choices(stages_));
    for (size_t k = 0; k < stages_; ++k) {
      if ((k >= begin && k < end) != inside) continue;
      choices[k].option = kSwept;
      choices[k].cut = k % group == 0 ? 1 : 0;
    }
    return choices;
  }

  const ChainProblem& problem_;
  const bool again_;
  const size_t stages_;
  Judge judge_;
  common::SearchControl control_;
  place::Search<Choices> search_;
};

}  // namespace

Answer levels_chain(const ChainProblem& problem) {
  if (!place::lanes_of(problem.options.machine).empty()) {
    return ChainLevels(problem, true, "levels").run();
  }
  // Nothing can move. The bound is then that of the planner `chain`, for its class.
  ChainProblem alone = problem;
  alone.options.machine = {};
  Answer answer = chain::exact_chain(alone);
  if (answer.schedule_class.empty()) answer.schedule_class = "persistent";
  return answer;
}

Answer move_or_keep(const ChainProblem& problem, const char* planner) {
  return ChainLevels(problem, false, planner).run();
}

}  // namespace reprise::internal::levels
