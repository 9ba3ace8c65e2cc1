// plan() of a pipeline: the work that all its planners share.
#include "reprise/plan/pipeline.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plan/pipeline/candidate.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/messages.h"
#include "plan/pipeline/orders.h"
#include "reprise/check/pipeline.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/registry.h"

namespace reprise {
namespace {

const PlannerInfo& planner_of_pipelines(const PipelineOptions& options) {
  const PlannerInfo& planner = find_planner(options.planner.empty() ? "pipeline" : options.planner);
  if (planner.plan_pipeline != nullptr) return planner;
  std::string others;
  for (const PlannerInfo& other : planners()) {
    if (other.plan_pipeline == nullptr) continue;
    others += (others.empty() ? "" : ", ") + std::string(other.name);
  }
  throw InputError(std::string("planner '") + planner.name +
                   "' does not plan pipelines; these do: " + others);
}

// Adds what the plain pipeline needs and the problem does not have.
Pipeline with_all_links(const Pipeline& pipeline) {
  Pipeline result = pipeline;
  constexpr int64_t kFast = std::numeric_limits<int64_t>::max();
  for (int32_t d = 0; d + 1 < static_cast<int32_t>(pipeline.devices.size()); ++d) {
    for (const auto& [from, to] : {std::pair(d, d + 1), std::pair(d + 1, d)}) {
      if (find_link(pipeline, from, to) < 0) result.links.push_back({from, to, kFast, Nanos(0)});
    }
  }
  return result;
}

std::vector<Bytes> resolve_budgets(const Pipeline& pipeline, const PipelineOptions& options,
                                   const Baseline& plain) {
  const Bytes budget = options.budget.resolve(plain.peak);
  if (budget < Bytes(0)) throw InputError("the budget is negative");
  std::vector<Bytes> budgets;
  for (const PipelineDevice& device : pipeline.devices) {
    budgets.push_back(std::min(budget, device.memory.value_or(budget)));
  }
  return budgets;
}

void require_valid_plan(const Pipeline& pipeline, const PipelinePlan& plan) {
  const std::vector<Violation> violations = verify(pipeline, plan, plan.problem);
  if (violations.empty()) return;
  std::string text;
  for (const Violation& violation : violations) text += "\n  " + violation.message;
  throw InternalError("planner '" + plan.planner + "' made an invalid plan for '" +
                      plan.problem.name + "':" + text);
}

PipelinePlan complete_pipeline_plan(const Pipeline& pipeline, PipelineAnswer answer,
                                    const PipelineResult& result) {
  PipelinePlan plan;
  plan.problem = problem_id(pipeline);
  plan.planner = result.planner;
  plan.termination = result.termination;
  plan.schedule_class = result.schedule_class;
  plan.lower_bound = result.lower_bound;
  plan.baseline = result.baseline;
  plan.search = result.search;
  plan.parts = std::move(answer.parts);
  for (size_t d = 0; d < pipeline.devices.size(); ++d) {
    plan.devices.push_back({.name = pipeline.devices[d].name,
                            .budget = result.budgets[d],
                            .peak = {},
                            .order = std::move(answer.orders[d])});
  }
  const PipelineTimeline timeline = simulate(pipeline, plan);
  plan.time = timeline.time;
  for (size_t d = 0; d < plan.devices.size(); ++d) plan.devices[d].peak = timeline.devices[d].peak;
  require_valid_plan(pipeline, plan);
  return plan;
}

}  // namespace

Baseline baseline(const Pipeline& pipeline) {
  using namespace internal::pipeline;
  validate(pipeline);
  const Pipeline linked = with_all_links(pipeline);
  const Layout layout = layout_of(linked, {}, 1);
  std::vector<PartPlan> plans;
  for (size_t q = 0; q < layout.parts(); ++q) {
    plans.push_back(keep_plan(linked, layout.cuts[q], layout.cuts[q + 1]));
  }
  const PipelineTimeline timeline = simulate(
      linked, draft_plan(linked, layout, plans,
                         with_messages(layout, one_f_one_b_order(linked, layout), Slack{})));
  Baseline plain{.peak = {}, .time = timeline.time};
  for (const DeviceTimeline& device : timeline.devices)
    plain.peak = std::max(plain.peak, device.peak);
  return plain;
}

PipelineResult plan(const Pipeline& pipeline, const PipelineOptions& options) {
  using Clock = std::chrono::steady_clock;
  validate(pipeline);
  if (options.time_limit < Nanos(0)) throw InputError("the time limit is negative");
  if (options.threads < 0) throw InputError("the number of threads is negative");
  const PlannerInfo& planner = planner_of_pipelines(options);
  const Pipeline admissible = restrict_exactness(pipeline, options.allow);
  PipelineResult result;
  result.planner = planner.name;
  result.baseline = baseline(pipeline);
  result.budgets = resolve_budgets(pipeline, options, result.baseline);
  const Clock::time_point start = Clock::now();
  PipelineAnswer answer = planner.plan_pipeline({admissible, result.budgets, options});
  result.search = {
      Nanos(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count()),
      answer.search_memory};
  result.termination = answer.termination;
  result.schedule_class =
      answer.schedule_class.empty() ? planner.schedule_class : answer.schedule_class;
  result.lower_bound = answer.lower_bound;
  result.blocking_device = answer.blocking_device;
  result.needed = answer.needed;
  if (!answer.parts.empty()) {
    result.plan = complete_pipeline_plan(pipeline, std::move(answer), result);
  }
  return result;
}

}  // namespace reprise
