// Training steps inside a budget, in one of the two modes, as `reprise train` needs them.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "reprise/model/profile.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/data.h"
#include "reprise/runtime/train.h"
#include "reprise/runtime/zoo.h"

namespace reprise::runtime {

struct StepPeak {
  Bytes predicted, measured;
};

class PlannedSteps {
 public:
  virtual ~PlannedSteps() = default;

  // Measures the model on this batch.
  virtual void measure(const Batch& batch) = 0;
  virtual Profile profile() const = 0;
  virtual Baseline plain() const = 0;  // as predicted
  // Plans; an infeasible budget is an answer.
  virtual PlanResult plan(Budget budget) = 0;
  // Forward, loss, backward, and the optimizer's step if it consumes the gradients; the loss.
  virtual at::Tensor run(const Batch& batch) = 0;
  virtual StepPeak peak() const = 0;  // of the last run
  virtual std::optional<CapturedStepReport> captured() const { return std::nullopt; }
  // See Remat.
  virtual void log_steps(int64_t steps) = 0;
  virtual std::optional<RunLog> run_log() const = 0;
};

// `model` and `options` must outlive it. `optimizer`: consumes the gradients; null: they are kept.
std::unique_ptr<PlannedSteps> make_planned_steps(const Model& model, const TrainOptions& options,
                                                 std::shared_ptr<ParameterOptimizer> optimizer);

// The stages one after the other; what the plain training step computes.
at::Tensor run_stages(const Model& model, const at::Tensor& input);

}  // namespace reprise::runtime
