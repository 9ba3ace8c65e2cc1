#include "runtime/online/online_plan.h"

#include <fmt/format.h>

#include <utility>

#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "reprise/run/interpreter.h"
#include "runtime/online/lower_trace.h"

namespace reprise::runtime::internal::online {
namespace {

constexpr const char* kInTurn = "in_turn";  // A step runs its calls when it comes to them.

// Turns the actions of a plan into those before each call.
class Conversion {
 public:
  Conversion(const Trace& trace, const LoweredTrace& lowered, const std::vector<Action>& actions,
             int64_t smallest)
      : trace_(trace),
        serials_(lowered.serials),
        program_(lowered.graph, actions),
        smallest_(smallest) {}

  OnlinePlan run() {
    plan_.outlives.assign(trace_.values.size(), false);
    released_.assign(trace_.values.size(), false);
    for (const Program::Entry& entry : program_.entries()) {
      if (entry.kind == ActionKind::kFree) {
        add_release(serials_[entry.value]);
      } else if (entry.kind != ActionKind::kRun) {
        throw InternalError("a plan for online mode moves values");
      } else if (entry.run.first) {
        begin_call(static_cast<size_t>(entry.run.op));
      } else {
        add_rerun(static_cast<size_t>(entry.run.op));
      }
    }
    begin_call(trace_.calls.size());
    // Memory that is written over belongs to the value behind the write.
    for (const TracedValue& value : trace_.values) {
      if (value.previous >= 0) plan_.outlives[value.previous] = false;
    }
    plan_.before.push_back(static_cast<uint32_t>(plan_.actions.size()));
    find_next_makers();
    find_stays();
    return std::move(plan_);
  }

 private:
  void begin_call(size_t call) {
    if (plan_.before.size() != call) throw InternalError("a plan for online mode moves calls");
    plan_.before.push_back(batch_);
    batch_ = static_cast<uint32_t>(plan_.actions.size());
  }

  void add_release(int32_t serial) {
    released_[serial] = true;
    plan_.actions.push_back({.kind = PlannedAction::Kind::kRelease, .of = serial});
  }

  void add_rerun(size_t call) {
    plan_.planned_cost += trace_.calls[call].cost;
    for (const int32_t serial : trace_.reads(call)) {
      const auto v = static_cast<size_t>(serial);
      if (!released_[v] && !trace_.values[v].outside) plan_.outlives[v] = true;
    }
    plan_.actions.push_back(
        {.kind = PlannedAction::Kind::kRunAgain, .of = static_cast<int32_t>(call)});
  }

  void find_next_makers() {
    const auto none = static_cast<int32_t>(plan_.actions.size());
    std::vector<int32_t> next(trace_.values.size(), none);
    for (size_t a = plan_.actions.size(); a-- > 0;) {
      PlannedAction& action = plan_.actions[a];
      if (action.kind == PlannedAction::Kind::kRelease) {
        action.made_again_at = next[action.of];
        continue;
      }
      for (const int32_t serial : trace_.made(static_cast<size_t>(action.of))) {
        next[serial] = static_cast<int32_t>(a);
      }
    }
  }

  // What a re-run makes stays if no action before the same call releases all of it again, or writes
  // over it.
  void find_stays() {
    std::vector<uint32_t> over_in(trace_.values.size(), UINT32_MAX);
    for (size_t c = 0; c + 1 < plan_.before.size(); ++c) {
      const auto batch = static_cast<uint32_t>(c);
      for (uint32_t a = plan_.before[c + 1]; a-- > plan_.before[c];) {
        PlannedAction& action = plan_.actions[a];
        if (action.kind == PlannedAction::Kind::kRelease) {
          over_in[action.of] = batch;
          continue;
        }
        for (const int32_t serial : trace_.made(static_cast<size_t>(action.of))) {
          const TracedValue& value = trace_.values[serial];
          if (value.outside || value.bytes < smallest_) continue;
          if (over_in[serial] != batch) action.stays = true;
          over_in[serial] = UINT32_MAX;
          if (value.previous >= 0) over_in[value.previous] = batch;
        }
      }
    }
  }

  const Trace& trace_;
  const std::vector<int32_t>& serials_;  // by value of the graph
  const Program program_;
  const int64_t smallest_;
  OnlinePlan plan_;
  std::vector<bool> released_;  // by value: the plan has released it at least once
  uint32_t batch_ = 0;          // the first action before the call that comes next
};

}  // namespace

std::optional<OnlinePlan> plan_step(const Trace& trace, const OnlinePlanOptions& options,
                                    std::string& why_not) {
  const LoweredTrace lowered = lower(trace, options.smallest);
  const Graph& graph = lowered.graph;
  const int64_t room = (options.budget - options.reserve).count() - trace.live_before -
                       most_small_bytes(trace, options.smallest);
  if (room <= 0) {
    why_not = "the budget leaves no room beside what is live before the step";
    return std::nullopt;
  }
  const PlanResult found = plan(graph, {.budget = Budget(Bytes(room)),
                                        .schedule_class = kInTurn,
                                        .time_limit = options.time_limit,
                                        .threads = 1,
                                        .stop = options.stop});
  if (!found.plan) {
    why_not = found.termination == Termination::kTimeLimit
                  ? "no plan was found within the time limit"
                  : "no plan fits the budget";
    return std::nullopt;
  }
  OnlinePlan plan = Conversion(trace, lowered, found.plan->actions, options.smallest).run();
  plan.trace = trace;
  return plan;
}

}  // namespace reprise::runtime::internal::online
