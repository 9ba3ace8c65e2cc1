#include "runtime/graph/step_search.h"

#include <algorithm>
#include <chrono>

#include "reprise/check/simulate.h"
#include "reprise/pack/plan_blocks.h"
#include "runtime/arena/arena.h"

namespace reprise::runtime::internal::graph {

using arena::placement_on;
using arena::system_page;

namespace {

const Bytes kNoLimit = Budget().resolve(Bytes(0));
constexpr int kPlacementAttempts = 2;
// The first plan gets this share of the time, and each further plan this share of the time that is
// left. Most plans can be placed, so the first one gets most.
constexpr double kForFirst = 0.85, kForNext = 0.8;
// A plan that can be placed may take so many times as long as the first plan, which the heap
// serves. The arena saves about the difference.
constexpr double kPlacementPrice = 1.05;

// Returns the bytes of values that are on the device when the step begins.
Bytes inputs_bytes(const Graph& graph, const PlanResult& result) {
  Bytes sum;
  for (const Value& value : as_placed(graph, result.plan->actions).value_or(graph).values) {
    if (starts_on_device(value)) sum += value.bytes;
  }
  return sum;
}

StepPlan search(const Graph& graph, const StepPlanOptions& options, Bytes slack, Nanos time_limit) {
  PlanOptions asked = as_plan_options(options);
  asked.time_limit = time_limit;
  asked.reserve = slack;
  StepPlan found{plan(graph, asked), slack};
  if (found.result.plan) found.before_placement = found.result.plan->time;
  return found;
}

// Returns the bytes that small blocks take by breaking up pages: some pages, if the budget is below
// plain training's peak.
Bytes for_pages(const Graph& graph, const StepPlanOptions& options) {
  const Bytes peak = baseline(graph).peak, budget = options.budget.resolve(peak);
  if (budget >= peak) return Bytes(0);
  const int64_t room = std::max<int64_t>(0, (budget - graph.fixed).count());
  return Bytes(std::min(room / 512, room / 4096 + 4 * system_page().count()));
}

}  // namespace

PlanOptions as_plan_options(const StepPlanOptions& options) {
  return {.budget = options.budget,
          .planner = options.planner,
          .time_limit = options.time_limit,
          .threads = options.threads,
          .allow = options.allow,
          .observer = options.observer,
          .machine = options.offload.machine};
}

Bytes room_of(const Graph& graph, const PlanResult& result, Bytes drift) {
  if (result.budget == kNoLimit) return result.budget;
  return result.budget - graph.fixed - drift - inputs_bytes(graph, result);
}

Bytes step_bytes(const Graph& graph, const PlanResult& result) {
  return result.plan->peak - graph.fixed - inputs_bytes(graph, result);
}

StepPlan search_step(const Graph& graph, const StepPlanOptions& options, Bytes slack,
                     std::optional<c10::Device> arena) {
  const bool limited = options.budget.relative() || options.budget.resolve(Bytes(0)) != kNoLimit;
  const bool placed = arena && limited;
  // The time limit is for all searches together.
  const auto start = std::chrono::steady_clock::now();
  auto rest = [&] {
    const Nanos used(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    return std::max(Nanos(0), options.time_limit - used);
  };
  const auto part_of = [](Nanos time, double part) {
    return Nanos(static_cast<int64_t>(static_cast<double>(time.count()) * part));
  };
  if (placed && slack == Bytes(0)) slack = for_pages(graph, options);
  const Nanos first = placed ? part_of(options.time_limit, kForFirst) : options.time_limit;
  StepPlan best = search(graph, options, slack, first);
  // A plan that cannot be placed is better than none.
  if (!best.result.plan && best.result.termination == Termination::kTimeLimit) {
    best = search(graph, options, Bytes(0), rest());
  }
  if (!placed || !best.result.plan) return best;
  // The caller's inputs are blocks of the plan, but they do not lie in the arena.
  const Bytes most = room_of(graph, best.result, Bytes(0)) + inputs_bytes(graph, best.result);
  for (int attempt = 0; attempt < kPlacementAttempts; ++attempt) {
    const Bytes height =
        placement_on(*arena, plan_blocks(graph, best.result.plan->actions, options.offload.machine),
                     most)
            .height;
    if (height <= most) break;
    std::optional<StepPlan> smaller =
        search_smaller(graph, options, best, height - most, part_of(rest(), kForNext));
    if (!smaller) break;
    best = std::move(*smaller);
  }
  return best;
}

std::optional<StepPlan> search_smaller(const Graph& graph, const StepPlanOptions& options,
                                       const StepPlan& now, Bytes more, Nanos time_limit) {
  StepPlan found = search(graph, options, now.slack + more, time_limit);
  if (!found.result.plan || found.result.plan->peak + found.slack > found.result.budget) {
    return std::nullopt;
  }
  const auto worth = static_cast<double>(now.before_placement.count()) * kPlacementPrice;
  if (static_cast<double>(found.result.plan->time.count()) > worth) return std::nullopt;
  found.before_placement = now.before_placement;
  return found;
}

}  // namespace reprise::runtime::internal::graph
