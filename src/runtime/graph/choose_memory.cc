// Plans a captured step without a second memory and with one, and keeps what pays.
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/step_state.h"

namespace reprise::runtime::internal::graph {

using transfer::AutoMemory;
using transfer::OpenedMemory;
using transfer::Verdict;

namespace {

constexpr int64_t kParts = 2;        // of the time limit: without the memory and with it
constexpr int64_t kForFastest = 20;  // the part of the time limit for the plan without a budget

}  // namespace

PlanResult StepState::plan_choosing(StepPlanOptions wanted) {
  const AutoMemory memory_choice = memory_for_auto(wanted.offload, recording().device);
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
  StepPlan without = note_search("plan() was called (without a second memory)", [&] {
    return search(alone, beside, Bytes(0), /*together=*/true);
  });
  OpenedMemory opened;
  StepPlan with;
  const auto bound = [&] {
    return reprise::plan(beside, {.time_limit = Nanos(wanted.time_limit.count() / kForFastest),
                                  .threads = wanted.threads,
                                  .allow = wanted.allow})
        .lower_bound;
  };
  const auto plan_with_memory = [&] {
    opened = memory_for(wanted);
    Graph problem = beside;
    problem.fixed += opened.device_bytes;
    with = note_search("plan() was called (with " + wanted.offload.to + ")", [&] {
      return search(wanted, problem, Bytes(0), /*together=*/true);
    });
    return transfer::Comparison{beside, without.result, with.result, opened.machine};
  };
  const Verdict verdict = weigh_moving({without.result, bound, plan_with_memory,
                                        captured().program.costs.spread, wanted.offload.to});
  if (verdict.moves) return take(std::move(with), wanted, std::move(opened), verdict.why);
  if (without.result.plan) return take(std::move(without), alone, {}, verdict.why);
  const auto& one = without.result.smallest_budget;
  const auto& other = with.result.smallest_budget;
  return other && (!one || *other < *one) ? with.result : without.result;
}

}  // namespace reprise::runtime::internal::graph
