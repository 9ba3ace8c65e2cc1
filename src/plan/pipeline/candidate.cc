#include "plan/pipeline/candidate.h"

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise::internal::pipeline {
namespace {

PartRun stage_run(Phase phase, size_t stage, const std::string& variant) {
  return {phase, static_cast<int32_t>(stage), variant};
}

// Adds the forwards of the stages with their first options.
void add_kept(const Pipeline& pipeline, size_t first, size_t end, std::vector<PartRun>& runs) {
  for (size_t i = first; i < end; ++i) {
    runs.push_back(stage_run(Phase::kForward, i, pipeline.chain.stages[i].options.front().name));
  }
}

void add_backwards(const Pipeline& pipeline, size_t first, size_t end, std::vector<PartRun>& runs) {
  if (end == pipeline.chain.stages.size()) runs.push_back({Phase::kLoss, 0, "default"});
  for (size_t i = end; i-- > first;) {
    runs.push_back(stage_run(Phase::kBackward, i, pipeline.chain.stages[i].options.front().name));
  }
}

const StageOption* option_of(const Stage& stage, const std::string& name) {
  for (const StageOption& option : stage.options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

// Returns the saved bytes that a part holds for a micro-batch if everything is kept.
Bytes kept_bytes(const Pipeline& pipeline, size_t first, size_t end) {
  Bytes bytes;
  for (size_t i = first; i < end; ++i) {
    bytes += pipeline.chain.stages[i].options.front().saved + pipeline.chain.stages[i].output;
  }
  return bytes;
}

}  // namespace

PartPlan keep_plan(const Pipeline& pipeline, size_t first, size_t end) {
  PartPlan plan;
  add_kept(pipeline, first, end, plan.forward);
  add_backwards(pipeline, first, end, plan.backward);
  return plan;
}

PartPlan recompute_plan(const Pipeline& pipeline, size_t first, size_t end) {
  PartPlan plan;
  if (end < pipeline.chain.stages.size()) {
    for (size_t i = first; i < end; ++i)
      plan.forward.push_back(stage_run(Phase::kForward, i, "fast"));
  }
  add_kept(pipeline, first, end, plan.backward);
  add_backwards(pipeline, first, end, plan.backward);
  return plan;
}

PartTimes times_of_plan(const Pipeline& pipeline, int32_t device, const PartPlan& plan) {
  PartTimes times;
  const auto add = [&](const PartRun& run, Nanos& time) {
    if (run.phase == Phase::kLoss) {
      time += pipeline.chain.loss.cost.time;
      times.backward += pipeline.chain.loss.cost.time;
      return;
    }
    const auto i = static_cast<size_t>(run.stage);
    const Stage& stage = pipeline.chain.stages[i];
    const StageOption* option = option_of(stage, run.variant);
    if (run.phase == Phase::kForward) {
      const Nanos own = option == nullptr ? stage.forward.time : option->forward.time;
      time += own;
      if (&time != &times.forward) times.backward += own;
      return;
    }
    times.backward += option->backward.time;
    const WeightPart* weights = weight_part(pipeline, i, *option);
    time += weights == nullptr ? option->backward.time : rest_of_backward(*weights, *option).time;
    if (weights != nullptr) times.weight_gradient += weights->cost.time;
  };
  for (const PartRun& run : plan.forward) add(run, times.forward);
  for (const PartRun& run : plan.backward) add(run, times.input_gradient);
  const PipelineDevice& on = pipeline.devices[device];
  return {.forward = time_on(on, times.forward),
          .backward = time_on(on, times.backward),
          .input_gradient = time_on(on, times.input_gradient),
          .weight_gradient = time_on(on, times.weight_gradient)};
}

PipelinePlan draft_plan(const Pipeline& pipeline, const Layout& layout,
                        const std::vector<PartPlan>& plans, Orders orders) {
  PipelinePlan draft;
  for (size_t q = 0; q < layout.parts(); ++q) {
    draft.parts.push_back(
        {.device = layout.device[q],
         .first_stage = static_cast<int32_t>(layout.cuts[q]),
         .stages = static_cast<int32_t>(layout.cuts[q + 1] - layout.cuts[q]),
         .plans = {plans[q]},
         .plan_of = std::vector<int32_t>(static_cast<size_t>(pipeline.micro_batches), 0)});
  }
  for (size_t d = 0; d < pipeline.devices.size(); ++d) {
    draft.devices.push_back({.name = pipeline.devices[d].name,
                             .budget = {},
                             .peak = {},
                             .order = std::move(orders[d])});
  }
  return draft;
}

common::SearchControl control_of(const PipelineProblem& problem, const char* planner) {
  return {
      PlanOptions{.time_limit = problem.options.time_limit, .observer = problem.options.observer},
      planner};
}

BestPlan::BestPlan(const PipelineProblem& problem)
    : problem_(problem),
      control_(control_of(problem, "pipeline")),
      last_(problem.budgets.size(), Bytes(0)) {}

void BestPlan::note_miss(const Miss& miss) {
  if (!closest_ || miss.over < closest_->over) closest_ = miss;
}

std::optional<std::vector<size_t>> BestPlan::consider(const PipelinePlan& plan) {
  control_.report(-1);
  const auto timeline = simulate_unless_stuck(problem_.pipeline, plan);
  if (!timeline) return std::nullopt;
  // A plan that is slower than the best one is not worth more.
  if (best_ && timeline->time >= time_) return std::vector<size_t>();
  std::vector<size_t> over;
  Miss worst;
  for (size_t d = 0; d < problem_.budgets.size(); ++d) {
    const Bytes peak = last_[d] = timeline->devices[d].peak;
    if (peak <= problem_.budgets[d]) continue;
    over.push_back(d);
    const Bytes excess = peak - problem_.budgets[d];
    if (excess > worst.over) worst = {d, peak, excess};
  }
  if (!over.empty()) {
    note_miss(worst);
  } else if (!best_ || timeline->time < time_) {
    best_ = plan;
    time_ = timeline->time;
  }
  return over;
}

void BestPlan::consider(const PipelineAnswer& answer) {
  if (answer.parts.empty()) {
    for (size_t d = 0; answer.needed && d < problem_.budgets.size(); ++d) {
      if (problem_.pipeline.devices[d].name != answer.blocking_device) continue;
      note_miss({d, *answer.needed, *answer.needed - problem_.budgets[d]});
    }
    return;
  }
  PipelinePlan plan;
  plan.parts = answer.parts;
  for (size_t d = 0; d < problem_.budgets.size(); ++d) {
    plan.devices.push_back({.name = problem_.pipeline.devices[d].name,
                            .budget = {},
                            .peak = {},
                            .order = answer.orders[d]});
  }
  consider(plan);
}

PipelineAnswer BestPlan::answer(Nanos lower_bound) const {
  PipelineAnswer answer;
  answer.lower_bound = lower_bound;
  if (best_) {
    answer.termination = time_ == lower_bound ? Termination::kOptimal : Termination::kFeasible;
    answer.parts = best_->parts;
    for (const DevicePlan& device : best_->devices) answer.orders.push_back(device.order);
    return answer;
  }
  if (!closest_) {
    throw InternalError(
        "every order of a pipeline that was tried has devices that wait for each other");
  }
  answer.termination = late() ? Termination::kTimeLimit : Termination::kInfeasible;
  answer.blocking_device = problem_.pipeline.devices[closest_->device].name;
  answer.needed = closest_->peak;
  return answer;
}

namespace {

// These slacks are tried in turn. Larger numbers hide more of the links, smaller ones take fewer
// bytes.
constexpr Slack kSlacks[] = {{1, 1}, {2, 2}, {1, 2}, {0, 1}, {0, 2}};

}  // namespace

bool try_order(const PipelineProblem& problem, const Layout& layout, const OrderMaker& make,
               BestPlan& best) {
  const Pipeline& pipeline = problem.pipeline;
  std::vector<size_t> by_saving(layout.parts());
  for (size_t q = 0; q < by_saving.size(); ++q) by_saving[q] = q;
  std::ranges::stable_sort(by_saving, [&](size_t a, size_t b) {
    return kept_bytes(pipeline, layout.cuts[a], layout.cuts[a + 1]) >
           kept_bytes(pipeline, layout.cuts[b], layout.cuts[b + 1]);
  });
  bool ran = false;
  for (const Slack& slack : kSlacks) {
    std::vector<PartPlan> plans;
    for (size_t q = 0; q < layout.parts(); ++q) {
      plans.push_back(keep_plan(pipeline, layout.cuts[q], layout.cuts[q + 1]));
    }
    std::vector<char> kept(layout.parts(), 1);
    for (bool changed = true; changed;) {
      if (ran && best.late()) return true;
      const auto over = best.consider(
          draft_plan(pipeline, layout, plans, with_messages(layout, make(plans), slack)));
      if (!over) break;
      ran = true;
      changed = false;
      for (const size_t device : *over) {
        for (const size_t q : by_saving) {
          if (!kept[q] || layout.device[q] != static_cast<int32_t>(device)) continue;
          kept[q] = 0;
          plans[q] = recompute_plan(pipeline, layout.cuts[q], layout.cuts[q + 1]);
          changed = true;
          break;
        }
      }
    }
  }
  return ran;
}

}  // namespace reprise::internal::pipeline
