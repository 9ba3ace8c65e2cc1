#include "reprise/model/runlog.h"

#include "reprise/model/errors.h"

namespace reprise {
namespace {

[[noreturn]] void fail(size_t entry, const std::string& key, const std::string& message) {
  throw InputError("the run log is not of this plan: " + message,
                   {.pointer = "/actions/" + std::to_string(entry) + key});
}

}  // namespace

void validate(const RunLog& log, const Plan& plan) {
  if (!same_problem(log.problem, plan.problem)) {
    throw InputError("the run log is for another problem than the plan", {.pointer = "/problem"});
  }
  int64_t last = -1;
  for (size_t e = 0; e < log.actions.size(); ++e) {
    const RunLogEntry& entry = log.actions[e];
    const std::string position = "action " + std::to_string(entry.action);
    if (entry.action <= last)
      fail(e, "/action", "positions must ascend, and " + position + " does not");
    last = entry.action;
    if (entry.action >= static_cast<int64_t>(plan.actions.size())) {
      fail(e, "/action", "it has no " + position);
    }
    const Action& action = plan.actions[entry.action];
    if (action.kind != ActionKind::kRun) {
      fail(e, "/action", position + " of the plan is a " + to_string(action.kind));
    }
    if (action.id != entry.op) fail(e, "/op", position + " of the plan runs " + action.id);
    if (action.variant != entry.variant) {
      fail(e, "/variant", position + " of the plan runs variant " + action.variant);
    }
  }
}

}  // namespace reprise
