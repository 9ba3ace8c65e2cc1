// Plans a captured step without a second memory and with one, and keeps what pays.
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/step_state.h"
#include "runtime/transfer/choose.h"

namespace reprise::runtime::internal::graph {

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
  const AutoMemory memory_choice =
      ranks ? AutoMemory{{}, "the values of a step of a process group stay on their device"}
            : memory_for_auto(wanted.offload, recording().device);
  require_homes(wanted);  // What lies there between the steps needs a memory by name.
  StepPlanOptions alone = wanted;
  alone.offload = {};
  if (memory_choice.options.to.empty()) {
    PlanResult result = plan_with(std::move(alone));
    if (result.plan) report.offload_choice = "nothing moves: " + memory_choice.why;
    return result;
  }
  // Parameters and the state of an optimizer are on the device in both plans.
  PlacedStep next =
      place({}, graph().fixed + now().drift - offload_memory.device_bytes + bytes_of(placement));
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
    now().placements = 0;
    outcomes.drop_other_plans();
    return now().plan->result;
  };

  const auto noted = [&](const StepPlanOptions& asked, const Graph& problem,
                         const std::string& why) {
    return overheads.note(
        "plan", why, [&] { return search(asked, problem, Bytes(0)); },
        [](const StepPlan& made) { return device::found_text(made.result); });
  };
  StepPlan without = noted(alone, beside, "plan() was called (without a second memory)");
  const Nanos fastest =
      reprise::plan(beside, {.time_limit = Nanos(wanted.time_limit.count() / kForFastest),
                             .threads = wanted.threads,
                             .allow = wanted.allow})
          .lower_bound;
  if (const Verdict early = weigh_before(without.result, fastest); !early.why.empty()) {
    return take(std::move(without), alone, {}, early.why);
  }
  OpenedMemory opened = memory_for(wanted);
  Graph with_memory = beside;
  with_memory.fixed += opened.device_bytes;
  StepPlan with = noted(wanted, with_memory, "plan() was called (with " + wanted.offload.to + ")");
  if (!without.result.plan && !with.result.plan) {
    const auto& one = without.result.smallest_budget;
    const auto& other = with.result.smallest_budget;
    return other && (!one || *other < *one) ? with.result : without.result;
  }
  const Verdict verdict = weigh({beside, without.result, with.result, opened.machine},
                                captured().program.costs.spread, wanted.offload.to);
  if (verdict.moves) {
    return take(std::move(with), wanted, std::move(opened), verdict.why);
  }
  return take(std::move(without), alone, {}, verdict.why);
}

}  // namespace reprise::runtime::internal::graph
