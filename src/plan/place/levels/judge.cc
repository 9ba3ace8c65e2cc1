#include "plan/place/levels/judge.h"

#include <algorithm>

#include "plan/graph/bound/with_copies.h"

namespace reprise::internal::levels {

using place::PlanCost;
using place::FlowCost;

Judge::Judge(const ChainProblem& problem, size_t window, const char* planner)
    : problem_(problem),
      control_(problem.options, planner),
      model_(chain::make_model(problem.chain)),
      graph_(problem.graph),
      lane_times_(problem.graph, problem.options.machine),
      memory_(problem.budget.count() - model_.fixed - model_.x[0]),
      segments_(problem.chain, model_, window, memory_, control_),
      scheduler_(model_, graph_, segments_, memory_),
      flow_(graph_, lane_times_) {}

Nanos Judge::bound(double share) {
  if (!bound_) {
    common::SearchControl part = control_.part(share);
    const Machine& machine = lane_times_.machine();
    bound_ = bound::bound_with_copies(problem_.graph, problem_.budget, machine, part).time;
  }
  return *bound_;
}

std::optional<PlanCost> Judge::cost_of(const Choices& choices, int64_t limit) {
  if (!scheduler_.make(choices, schedule_)) return std::nullopt;
  const int64_t budget = problem_.budget.count();
  const FlowCost cost = flow_.build(schedule_.runs, schedule_.lanes, budget, limit, false);
  if (cost.time > limit) return std::nullopt;
  return PlanCost{std::max<int64_t>(0, cost.peak - budget), cost.time};
}

Answer Judge::answer() {
  Answer answer;
  answer.lower_bound = bound();
  answer.termination = Termination::kInfeasible;
  if (!best_) return answer;
  scheduler_.make(best_->state, schedule_);
  const FlowCost cost =
      flow_.build(schedule_.runs, schedule_.lanes, problem_.budget.count());
  if (best_->cost.fits()) {
    answer.set_found(Nanos(cost.time));
    answer.actions = flow_.actions();
    return answer;
  }
  const std::vector<int32_t>& runs = schedule_.runs.op_variants;
  const size_t at = std::min(static_cast<size_t>(cost.at), runs.size() - 1);
  answer.smallest_budget = Bytes(cost.peak);
  answer.blocking_op = problem_.graph.ops[graph_.op_variant(runs[at]).run.op].id;
  return answer;
}

}  // namespace reprise::internal::levels
