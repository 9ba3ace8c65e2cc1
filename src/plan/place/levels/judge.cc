#include "plan/place/levels/judge.h"

#include <algorithm>
#include <utility>

#include "plan/place/levels/bound.h"

namespace reprise::internal::levels {

Judge::Judge(const ChainProblem& problem, size_t window, const char* planner)
    : problem_(problem),
      control_(problem.options, planner),
      model_(chain::make_model(problem.chain)),
      graph_(problem.graph),
      carrier_(problem.graph, problem.options.machine),
      memory_(problem.budget.count() - model_.fixed - model_.x[0]),
      bound_(loss_bound(problem.chain, problem.options.machine, problem.budget)),
      segments_(problem.chain, model_, window, memory_),
      scheduler_(model_, graph_, segments_, memory_),
      flow_(graph_, carrier_),
      bench_{model_, scheduler_, flow_, carrier_.lanes().size(), problem.budget.count(), control_} {
}

std::optional<Candidate> Judge::look_at(Choices choices, int64_t limit) {
  std::optional<Candidate> next = evaluate(bench_, std::move(choices), limit);
  if (!next || next->cost.peak <= bench_.budget) return next;
  if (!smallest_ || next->cost.peak < smallest_->cost.peak) smallest_ = std::move(next);
  return std::nullopt;
}

void Judge::consider(Candidate candidate) {
  if (!best_ || candidate.cost.time < best_->cost.time) best_ = std::move(candidate);
}

Answer Judge::answer() {
  Answer answer;
  answer.lower_bound = bound_;
  if (!best_) {
    answer.termination = Termination::kInfeasible;
    if (smallest_) {
      const std::vector<int32_t>& runs = smallest_->schedule.runs.op_variants;
      const size_t at = std::min(static_cast<size_t>(smallest_->cost.at), runs.size() - 1);
      const OpIndex op = graph_.op_variant(runs[at]).run.op;
      answer.smallest_budget = Bytes(smallest_->cost.peak);
      answer.blocking_op = problem_.graph.ops[op].id;
    }
    return answer;
  }
  const Schedule& schedule = best_->schedule;
  answer.set_found(Nanos(flow_.build(schedule.runs, schedule.lanes, bench_.budget).time));
  answer.actions = flow_.actions();
  return answer;
}

}  // namespace reprise::internal::levels
