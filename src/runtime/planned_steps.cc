#include "planned_steps.h"

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/remat.h"

namespace reprise::runtime {
namespace {

class ChainSteps final : public PlannedSteps {
 public:
  ChainSteps(const Model& model, const TrainOptions& options)
      : model_(model), options_(options), remat_(model.stages, remat_options()) {}

  void measure(const Batch& batch) override {
    batch_ = &batch;
    remat_.plan_for({batch.input});
  }
  Profile profile() const override { return remat_.profile(); }
  Baseline plain() const override { return remat_.plan().baseline; }

  PlanResult plan(Budget budget) override {
    PlanResult result = reprise::plan(remat_.chain(), {.budget = budget,
                                                       .planner = remat_options().planner,
                                                       .schedule_class = kScheduleClass,
                                                       .time_limit = options_.time_limit,
                                                       .observer = options_.observer});
    if (result.plan) remat_.set_budget(budget);
    return result;
  }

  at::Tensor run(const Batch& batch) override {
    batch_ = &batch;
    at::Tensor loss = model_.loss(remat_.forward(batch.input), batch.target);
    loss.backward();
    return loss;
  }
  StepPeak peak() const override {
    const StepReport step = remat_.last_step();
    return {step.predicted_peak, step.measured_peak};
  }
  void log_steps(int64_t steps) override { remat_.log_steps(steps); }
  std::optional<RunLog> run_log() const override { return remat_.run_log(); }

 private:
  RematOptions remat_options() {
    RematOptions remat;
    if (!options_.planner.empty()) remat.planner = options_.planner;
    remat.time_limit = options_.time_limit;
    remat.loss = [this](const Tensors& y) { return model_.loss(y.at(0), batch_->target); };
    remat.measure.name = options_.model.model;
    remat.measure.output_held = false;  // run()
    remat.observer = options_.observer;
    return remat;
  }

  const Model& model_;
  const TrainOptions& options_;
  const Batch* batch_ = nullptr;
  Remat remat_;
};

class GraphSteps final : public PlannedSteps {
 public:
  GraphSteps(const Model& model, const TrainOptions& options,
             std::shared_ptr<ParameterOptimizer> optimizer)
      : model_(model), options_(options), optimizer_(std::move(optimizer)) {}

  void measure(const Batch& batch) override {
    CaptureOptions options;
    options.modules = {model_.module()};
    options.measure.name = options_.model.model;
    options.measure.observer = options_.observer;
    options.alternatives = options_.alternatives;
    options.optimizer = optimizer_;
    step_.emplace(capture(
        [this](const Tensors& in) {
          at::Tensor loss = model_.loss(run_stages(model_, in[0]), in[1]);
          loss.backward();
          return loss;
        },
        {batch.input, batch.target}, options));
  }
  Profile profile() const override { return step_->profile(); }
  Baseline plain() const override { return baseline(step_->graph()); }

  PlanResult plan(Budget budget) override {
    StepPlanOptions options{.budget = budget, .time_limit = options_.time_limit};
    if (!options_.planner.empty()) options.planner = options_.planner;
    options.observer = options_.observer;
    PlanResult result = reprise::plan(step_->graph(), {.budget = budget,
                                                       .planner = options.planner,
                                                       .time_limit = options.time_limit,
                                                       .observer = options.observer});
    if (result.plan) step_->use(*result.plan, options);
    return result;
  }

  at::Tensor run(const Batch& batch) override { return step_->run({batch.input, batch.target}); }
  StepPeak peak() const override {
    const CapturedStepReport step = step_->last_step();
    return {step.predicted_peak, step.measured_peak};
  }
  std::optional<CapturedStepReport> captured() const override { return step_->last_step(); }
  void log_steps(int64_t steps) override { step_->log_steps(steps); }
  std::optional<RunLog> run_log() const override { return step_->run_log(); }

 private:
  const Model& model_;
  const TrainOptions& options_;
  const std::shared_ptr<ParameterOptimizer> optimizer_;
  std::optional<CapturedStep> step_;
};

}  // namespace

std::unique_ptr<PlannedSteps> make_planned_steps(const Model& model, const TrainOptions& options,
                                                 std::shared_ptr<ParameterOptimizer> optimizer) {
  if (options.mode == TrainMode::kGraph) {
    return std::make_unique<GraphSteps>(model, options, std::move(optimizer));
  }
  return std::make_unique<ChainSteps>(model, options);
}

at::Tensor run_stages(const Model& model, const at::Tensor& input) {
  Tensors x{input};
  for (const Stage& stage : model.stages) x = stage.forward(x);
  return std::move(x)[0];
}

}  // namespace reprise::runtime
