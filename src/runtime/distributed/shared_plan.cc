#include "runtime/distributed/shared_plan.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "runtime/distributed/wire.h"

namespace reprise::runtime::internal::distributed {
namespace {

std::string text_of(const PlanResult& answer) {
  Packed all;
  all.add(answer.plan ? to_json(*answer.plan) : "");
  if (!answer.plan) {
    all.add(static_cast<int64_t>(answer.termination))
        .add(static_cast<int64_t>(answer.proof))
        .add(answer.smallest_budget.value_or(Bytes(-1)).count())
        .add(answer.planner)
        .add(answer.blocking_op);
  }
  return all.take();
}

PlanResult result_of(const std::string& text) {
  Unpacked told(text);
  PlanResult result;
  if (const std::string plan = told.text(); !plan.empty()) {
    result.plan = parse_plan(plan, "the plan of rank 0");
    result.termination = result.plan->termination;
    result.planner = result.plan->planner;
    result.schedule_class = result.plan->schedule_class;
    result.lower_bound = result.plan->lower_bound;
    return result;
  }
  result.termination = static_cast<Termination>(told.number());
  result.proof = static_cast<Proof>(told.number());
  const Bytes smallest(told.number());
  if (smallest.count() >= 0) result.smallest_budget = smallest;
  result.planner = told.text();
  result.blocking_op = told.text();
  return result;
}

}  // namespace

void agree_on_plan(Ranks& ranks, const std::string& objection) {
  const std::vector<std::string> all = ranks.exchange(objection, "its word on the plan");
  std::string objections;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) objections += fmt::format("\nrank {}: {}", rank, all[rank]);
  }
  if (!objections.empty()) {
    throw InputError("the plan is not used, because some ranks refuse it:" + objections);
  }
}

PlanResult plan_of_first(Ranks& ranks, const Graph& graph, Bytes budget,
                         const std::function<PlanResult()>& search) {
  PlanResult result;
  const std::string text = ranks.by_first("its plan", [&] {
    result = search();
    return text_of(result);
  });
  if (ranks.rank() != 0) {
    result = telling(&ranks, [&] { return result_of(text); });
    result.budget = budget;
    result.baseline = baseline(graph);
  }
  if (!result.plan) return result;
  std::string objection;
  for (const Violation& violation : verify(graph, *result.plan, budget)) {
    objection += (objection.empty() ? "" : "; ") + violation.message;
  }
  agree_on_plan(ranks, objection);
  return result;
}

}  // namespace reprise::runtime::internal::distributed
