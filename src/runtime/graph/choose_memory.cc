// Plans a captured step without a second memory and with one, and keeps what pays.
#include <functional>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/graph/step_state.h"
#include "runtime/graph/words.h"
#include "runtime/transfer/choose.h"

namespace reprise::runtime::internal::graph {

using distributed::decision_of_first;
using distributed::first_reason;
using distributed::SharedDecision;
using transfer::AutoMemory;
using transfer::memory_for_auto;
using transfer::OpenedMemory;
using transfer::Verdict;
using transfer::weigh;
using transfer::weigh_before;

namespace {

constexpr int64_t kParts = 2;        // of the time limit: without the memory and with it
constexpr int64_t kForFastest = 20;  // the part of the time limit for the plan without a budget

}  // namespace

PlanResult StepState::plan_choosing(StepPlanOptions wanted) {
  AutoMemory memory_choice =
      telling(ranks.get(), [&] { return memory_for_auto(wanted.offload, recording().device); });
  const std::string none = first_reason(
      ranks.get(), memory_choice.options.to.empty() ? memory_choice.why : "", "its memories");
  if (!none.empty()) memory_choice = {{}, none};
  const auto by_first = [&](const std::function<Verdict()>& judge) {
    const auto [moves, why] = decision_of_first(ranks.get(), [&] {
      const Verdict mine = judge();
      return SharedDecision{mine.moves, mine.why};
    });
    return Verdict{moves, why};
  };
  require_homes(wanted);  // What lies there between the steps needs a memory by name.
  StepPlanOptions alone = wanted;
  alone.offload = {};
  if (memory_choice.options.to.empty()) {
    PlanResult result = plan_with(std::move(alone));
    if (result.plan) report.offload_choice = "nothing moves: " + memory_choice.why;
    return result;
  }
  // Parameters and the state of an optimizer are on the device in both plans.
  PlacedStep next = place(
      {}, graph().fixed + outcome().drift - offload_memory.device_bytes + bytes_of(placement));
  Graph& beside = next.graph;
  if (wanted.device_graph) beside.fixed += prepare_graph();
  fix_share(alone, beside);
  wanted.share_of = alone.share_of;
  wanted.offload = memory_choice.options;
  wanted.time_limit = alone.time_limit = Nanos(wanted.time_limit.count() / kParts);
  const auto take = [&](StepPlan found, const StepPlanOptions& taken, OpenedMemory there,
                        const std::string& why) {
    move_homes(next, there);
    plan_options = taken;
    plan_options.time_limit = Nanos(taken.time_limit.count() * kParts);
    beside.fixed += there.device_bytes;
    adopt(std::move(found), std::move(next));
    offload_memory = std::move(there);
    report.offload_choice = why;
    outcome().placements = 0;
    outcomes.drop_other_plans();
    return outcome().plan->result;
  };

  const auto noted = [&](const StepPlanOptions& asked, Graph& problem, const std::string& why) {
    return overheads.note(
        "plan", why, [&] { return search(asked, problem, Bytes(0), /*together=*/true); },
        [](const StepPlan& made) { return device::found_text(made.result); });
  };
  StepPlan without = noted(alone, beside, "plan() was called (without a second memory)");
  const Verdict early = by_first([&] {
    const PlanResult fastest =
        reprise::plan(beside, {.time_limit = Nanos(wanted.time_limit.count() / kForFastest),
                               .threads = wanted.threads,
                               .allow = wanted.allow});
    return weigh_before(without.result, fastest.lower_bound);
  });
  if (!early.why.empty()) return take(std::move(without), alone, {}, early.why);
  OpenedMemory opened = memory_for(wanted);
  Graph with_memory = beside;
  with_memory.fixed += opened.device_bytes;
  StepPlan with = noted(wanted, with_memory, "plan() was called (with " + wanted.offload.to + ")");
  if (!without.result.plan && !with.result.plan) {
    const auto& one = without.result.smallest_budget;
    const auto& other = with.result.smallest_budget;
    return other && (!one || *other < *one) ? with.result : without.result;
  }
  const Verdict verdict = by_first([&] {
    return weigh({beside, without.result, with.result, opened.machine},
                 captured().program.costs.spread, wanted.offload.to);
  });
  if (verdict.moves) {
    return take(std::move(with), wanted, std::move(opened), verdict.why);
  }
  return take(std::move(without), alone, {}, verdict.why);
}

}  // namespace reprise::runtime::internal::graph
