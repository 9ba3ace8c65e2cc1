#include "training/planned_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/online.h"
#include "reprise/runtime/remat.h"

namespace reprise::training {

using runtime::BodyFunction;
using runtime::CapturedStepReport;
using runtime::in_parts;
using runtime::micro_batches;
using runtime::MicroBatches;
using runtime::MicroBatchOptions;
using runtime::Online;
using runtime::OnlineReport;
using runtime::ParameterOptimizer;
using runtime::PartFunction;
using runtime::PartsTried;
using runtime::Remat;
using runtime::RematOptions;
using runtime::schedule_class_for;
using runtime::Stage;
using runtime::StepReport;
using runtime::Tensors;

namespace {

class ChainSteps final : public PlannedSteps {
 public:
  ChainSteps(const Model& model, const TrainOptions& options)
      : model_(model), options_(options), remat_(model.stages, remat_options()) {}

  PlanResult prepare(const Batch& batch, Budget budget) override {
    batch_ = &batch;
    if (options_.offload.to.rfind("auto", 0) == 0) {
      // The memory is chosen for a budget, with the plan.
      remat_.set_budget(budget);
      try {
        remat_.plan_for({batch.input});
        return remat_.plan();
      } catch (const BudgetError&) {  // The answer below says why.
        remat_.set_budget({});
      }
    }
    remat_.plan_for({batch.input});
    PlanResult result = reprise::plan(
        remat_.chain(), {.budget = budget,
                         .planner = remat_options().planner,
                         .schedule_class = schedule_class_for(remat_options().planner),
                         .time_limit = options_.time_limit,
                         .observer = options_.observer,
                         .machine = remat_.machine()});
    if (result.plan) remat_.set_budget(budget.relative() ? Budget(result.budget) : budget);
    return result;
  }
  TrainMode mode() const override { return TrainMode::kChain; }
  Profile profile() const override { return remat_.profile(); }
  const PlanResult& planned() const override { return remat_.plan(); }

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
  Machine machine() const override { return remat_.machine(); }
  MovedInStep moved() const override {
    const StepReport step = remat_.last_step();
    return {step.moved_out, step.moved_in, step.waited, step.offload_choice};
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
    remat.measure.output_held = false;  // see run()
    remat.measure.alternatives = options_.alternatives;
    remat.offload = options_.offload;
    remat.observer = options_.observer;
    return remat;
  }

  const Model& model_;
  const TrainOptions& options_;
  const Batch* batch_ = nullptr;
  Remat remat_;
};

size_t position_of(const Model& model, const std::string& stage) {
  const auto found = std::find_if(model.stages.begin(), model.stages.end(),
                                  [&](const Stage& one) { return one.name == stage; });
  if (found != model.stages.end()) return static_cast<size_t>(found - model.stages.begin());
  std::vector<std::string> names;
  for (const Stage& one : model.stages) names.push_back(one.name);
  throw InputError(
      fmt::format("the model has no stage \"{}\"; it has {}", stage, fmt::join(names, ", ")));
}

// Runs the stages from `from` on, up to the one before `to`.
Tensors run_stages(const Model& model, Tensors x, size_t from, size_t to) {
  for (size_t k = from; k < to; ++k) x = model.stages[k].forward(x);
  return x;
}

class GraphSteps final : public PlannedSteps {
 public:
  GraphSteps(const Model& model, const TrainOptions& options,
             std::shared_ptr<ParameterOptimizer> optimizer)
      : model_(model), options_(options), optimizer_(std::move(optimizer)) {}

  PlanResult prepare(const Batch& batch, Budget budget) override {
    MicroBatchOptions options;
    if (options_.micro_batches > 0) options.parts = {options_.micro_batches};
    options.capture.modules = {model_.module()};
    options.capture.measure.name = options_.model.model;
    options.capture.measure.observer = options_.observer;
    options.capture.alternatives = options_.alternatives;
    options.capture.optimizer = optimizer_;
    if (options_.group != nullptr) options.capture.group = options_.group->name();
    options.capture.shard_optimizer = options_.shard_optimizer;
    options.plan.budget = budget;
    options.plan.time_limit = options_.time_limit;
    if (!options_.planner.empty()) options.plan.planner = options_.planner;
    options.plan.offload = options_.offload;
    options.plan.offload_optimizer = options_.offload_optimizer;
    options.plan.offload_parameters = options_.offload_parameters;
    options.plan.observer = options_.observer;
    options.infeasible_is_an_answer = true;
    if (!options_.parts_from.empty()) options.body = training_body(model_, options_.parts_from);
    found_.emplace(micro_batches(training_part(model_, options_.parts_from),
                                 {batch.input, batch.target}, options));
    return found_->chosen.result;
  }
  TrainMode mode() const override { return TrainMode::kGraph; }
  Profile profile() const override { return found_->step.profile(); }
  const PlanResult& planned() const override { return found_->step.planned(); }
  int64_t parts() const override { return found_->chosen.parts; }
  std::vector<PartsTried> tried() const override { return found_->tried; }

  at::Tensor run(const Batch& batch) override {
    return found_->step.run({batch.input, batch.target});
  }
  StepPeak peak() const override {
    const CapturedStepReport step = found_->step.last_step();
    return {step.predicted_peak, step.measured_peak};
  }
  std::optional<CapturedStepReport> captured() const override { return found_->step.last_step(); }
  void check_codecs(runtime::CodecCheck check) override { found_->step.check_codecs(check); }
  std::vector<runtime::ApproximateValue> approximate_values() const override {
    return found_->step.approximate_values();
  }
  std::vector<std::string> guards() const override { return found_->step.guards(); }
  Machine machine() const override { return found_->step.machine(); }
  MovedInStep moved() const override {
    const CapturedStepReport step = found_->step.last_step();
    return {step.moved_out, step.moved_in, step.waited, step.offload_choice};
  }
  void fetch() override {
    if (!found_) return;
    found_->step.fetch_optimizer_state();
    found_->step.fetch_parameters();
  }
  void log_steps(int64_t steps) override { found_->step.log_steps(steps); }
  std::optional<RunLog> run_log() const override { return found_->step.run_log(); }

 private:
  const Model& model_;
  const TrainOptions& options_;
  const std::shared_ptr<ParameterOptimizer> optimizer_;
  std::optional<MicroBatches> found_;
};

// AutoSteps takes graph mode if the step can be captured, and chain mode otherwise.
class AutoSteps final : public PlannedSteps {
 public:
  AutoSteps(const Model& model, const TrainOptions& options) : model_(model), options_(options) {}

  PlanResult prepare(const Batch& batch, Budget budget) override {
    try {
      steps_ = std::make_unique<GraphSteps>(model_, options_, nullptr);
      return steps_->prepare(batch, budget);
    } catch (const InputError& error) {
      why_chain_ = error.what();
    }
    steps_ = std::make_unique<ChainSteps>(model_, options_);
    return steps_->prepare(batch, budget);
  }
  TrainMode mode() const override { return steps_->mode(); }
  std::string why_chain() const override { return why_chain_; }
  Profile profile() const override { return steps_->profile(); }
  const PlanResult& planned() const override { return steps_->planned(); }
  int64_t parts() const override { return steps_->parts(); }
  std::vector<PartsTried> tried() const override { return steps_->tried(); }
  at::Tensor run(const Batch& batch) override { return steps_->run(batch); }
  StepPeak peak() const override { return steps_->peak(); }
  std::optional<CapturedStepReport> captured() const override { return steps_->captured(); }
  void check_codecs(runtime::CodecCheck check) override { steps_->check_codecs(check); }
  std::vector<runtime::ApproximateValue> approximate_values() const override {
    return steps_->approximate_values();
  }
  std::vector<std::string> guards() const override { return steps_->guards(); }
  Machine machine() const override { return steps_->machine(); }
  MovedInStep moved() const override { return steps_->moved(); }
  void log_steps(int64_t steps) override { steps_->log_steps(steps); }
  std::optional<RunLog> run_log() const override { return steps_->run_log(); }

 private:
  const Model& model_;
  const TrainOptions& options_;
  std::unique_ptr<PlannedSteps> steps_;
  std::string why_chain_;
};

class OnlineSteps final : public PlannedSteps {
 public:
  explicit OnlineSteps(const Model& model) : model_(model) {}

  PlanResult prepare(const Batch& batch, Budget budget) override {
    online_.emplace(runtime::OnlineOptions{.budget = budget});
    online_->begin();
    try {
      step(batch);
    } catch (...) {
      online_->fail(std::current_exception());
    }
    online_->undo();
    PlanResult result;
    result.budget = budget.resolve(Bytes(0));
    return result;
  }
  TrainMode mode() const override { return TrainMode::kOnline; }
  Profile profile() const override { return {}; }
  const PlanResult& planned() const override { return none_; }
  at::Tensor run(const Batch& batch) override {
    return online_->run([&] { return step(batch); });
  }
  StepPeak peak() const override {
    const OnlineReport step = online_->last_step();
    return {step.measured_peak, step.measured_peak};
  }
  std::optional<OnlineReport> online() const override { return online_->last_step(); }
  void log_steps(int64_t) override {}
  std::optional<RunLog> run_log() const override { return std::nullopt; }

 private:
  at::Tensor step(const Batch& batch) const {
    return training_part(model_)({batch.input, batch.target}, 1)[0].detach();
  }

  const Model& model_;
  const PlanResult none_ = {};
  std::optional<Online> online_;
};

}  // namespace

std::unique_ptr<PlannedSteps> make_planned_steps(const Model& model, const TrainOptions& options,
                                                 std::shared_ptr<ParameterOptimizer> optimizer) {
  switch (options.mode) {
    case TrainMode::kAuto:
      return std::make_unique<AutoSteps>(model, options);
    case TrainMode::kGraph:
      return std::make_unique<GraphSteps>(model, options, std::move(optimizer));
    case TrainMode::kOnline:
      return std::make_unique<OnlineSteps>(model);
    case TrainMode::kChain:
      break;
  }
  return std::make_unique<ChainSteps>(model, options);
}

PartFunction training_part(const Model& model, const std::string& from) {
  const size_t first = from.empty() ? 0 : position_of(model, from);
  return [&model, first](const Tensors& in, double share) {
    const Tensors x(in.begin(), in.end() - 1);
    at::Tensor loss = model.loss(run_stages(model, x, first, model.stages.size())[0], in.back());
    if (share != 1) loss = loss * share;
    loss.backward();
    return Tensors{loss};
  };
}

BodyFunction training_body(const Model& model, const std::string& from) {
  return [&model, last = position_of(model, from)](const Tensors& in) {
    Tensors x = run_stages(model, {in[0]}, 0, last);
    x.push_back(in[1]);
    return x;
  };
}

runtime::StepFunction training_step(const Model& model, const std::string& from, int64_t parts) {
  if (from.empty()) return in_parts(training_part(model), parts);
  return in_parts(training_body(model, from), training_part(model, from), parts);
}

at::Tensor run_stages(const Model& model, const at::Tensor& input) {
  return run_stages(model, {input}, 0, model.stages.size())[0];
}

}  // namespace reprise::training
