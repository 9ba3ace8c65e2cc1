#include "plan/place/levels/judge.h"

#include <utility>

#include "plan/place/levels/bound.h"

namespace reprise::internal::levels {

Judge::Judge(const ChainProblem& problem, size_t window, const char* planner)
    : problem_(problem),
      control_(problem.options, planner),
      model_(chain::make_model(problem.chain)),
      carrier_(problem.graph, problem.options.machine),
      memory_(problem.budget.count() - model_.fixed - model_.x[0]),
      segments_(problem.chain, model_, window, memory_),
      scheduler_(model_, segments_, memory_),
      flows_(problem.graph, carrier_, ChainIndex{model_.stages}.loss()),
      bench_{model_,  scheduler_, flows_, carrier_.lanes().size(), problem.budget.count(),
             control_} {}

void Judge::offer(Choices choices) {
  Candidate next = evaluate(bench_, std::move(choices));
  const FlowResult& flow = next.flow;
  if (!flow.fits) {
    if (flow.need > 0 && (!refused_ || flow.need < refused_->need)) refused_ = flow;
  } else if (!best_ || flow.time < best_->flow.time) {
    best_ = std::move(next);
  }
}

Answer Judge::answer() {
  Answer answer;
  answer.lower_bound = loss_bound(problem_.chain, problem_.options.machine, problem_.budget);
  if (!best_) {
    answer.termination = Termination::kInfeasible;
    if (refused_) {
      answer.smallest_budget = Bytes(refused_->need);
      answer.blocking_op = problem_.graph.ops[static_cast<size_t>(refused_->at)].id;
    }
    return answer;
  }
  const FlowResult flow = flows_.build(best_->schedule, bench_.budget);
  answer.actions = flows_.actions(best_->schedule.runs);
  answer.termination =
      Nanos(flow.time) == answer.lower_bound ? Termination::kOptimal : Termination::kFeasible;
  return answer;
}

}  // namespace reprise::internal::levels
