#include "runtime/distributed/shared_plan.h"

#include <fmt/format.h>

#include <exception>
#include <sstream>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::internal::distributed {
namespace {

// The answer of rank 0 is a text that starts with one of these letters.
constexpr char kPlan = 'p', kNone = 'n', kError = 'e';

std::string text_of(const PlanResult& answer) {
  if (answer.plan) return kPlan + to_json(*answer.plan);
  return fmt::format("{}{} {} {} {} {}", kNone, static_cast<int>(answer.termination),
                     static_cast<int>(answer.proof),
                     answer.smallest_budget.value_or(Bytes(-1)).count(), answer.planner,
                     answer.blocking_op);
}

// Returns the answer of rank 0 that there is no plan.
PlanResult none_of(const std::string& text) {
  std::istringstream in(text.substr(1));
  int termination = 0, proof = 0;
  int64_t smallest = -1;
  PlanResult none;
  in >> termination >> proof >> smallest >> none.planner >> std::ws;
  std::getline(in, none.blocking_op);
  none.termination = static_cast<Termination>(termination);
  none.proof = static_cast<Proof>(proof);
  if (smallest >= 0) none.smallest_budget = Bytes(smallest);
  return none;
}

PlanResult result_of(const std::string& text) {
  if (text[0] == kNone) return none_of(text);
  PlanResult result;
  result.plan = parse_plan(text.substr(1), "the plan of rank 0");
  result.termination = result.plan->termination;
  result.planner = result.plan->planner;
  result.schedule_class = result.plan->schedule_class;
  result.lower_bound = result.plan->lower_bound;
  return result;
}

}  // namespace

void agree_on_plan(Peers& peers, const std::string& objection) {
  const std::vector<std::string> all = peers.exchange(objection, "its word on the plan");
  std::string objections;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) objections += fmt::format("\nrank {}: {}", rank, all[rank]);
  }
  if (!objections.empty()) {
    throw InputError("the plan is not used, because some ranks refuse it:" + objections);
  }
}

PlanResult plan_of_first(Peers& peers, const Graph& graph, Bytes budget,
                         const std::function<PlanResult()>& search) {
  PlanResult result;
  std::exception_ptr raised;
  std::string text;
  if (peers.rank() == 0) {
    try {
      result = search();
      text = text_of(result);
    } catch (const std::exception& error) {
      raised = std::current_exception();
      text = kError + std::string(error.what());
    }
  }
  text = peers.from_first(text, "its plan");
  if (raised) std::rethrow_exception(raised);
  if (text[0] == kError) throw InputError("rank 0 has found no plan: " + text.substr(1));
  if (peers.rank() != 0) {
    try {
      result = result_of(text);
    } catch (const std::exception& error) {
      peers.tell(error.what());
      throw;
    }
    result.budget = budget;
    result.baseline = baseline(graph);
  }
  if (!result.plan) return result;
  std::string objection;
  for (const Violation& violation : verify(graph, *result.plan, budget)) {
    objection += (objection.empty() ? "" : "; ") + violation.message;
  }
  agree_on_plan(peers, objection);
  return result;
}

}  // namespace reprise::runtime::internal::distributed
