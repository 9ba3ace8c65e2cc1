// Training steps inside a budget, in one of the two modes, as `reprise train` needs them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "reprise/model/profile.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/capture.h"
#include "training/data.h"
#include "reprise/runtime/micro_batches.h"
#include "training/train.h"
#include "training/zoo.h"

namespace reprise::training {

struct StepPeak {
  Bytes predicted, measured;
};

class PlannedSteps {
 public:
  virtual ~PlannedSteps() = default;

  // Measures the model on this batch and plans; an infeasible budget is an answer. A share is of the
  // predicted plain peak.
  virtual PlanResult prepare(const Batch& batch, Budget budget) = 0;
  // After prepare(): the mode of the steps, and why kAuto became kChain (else empty).
  virtual TrainMode mode() const = 0;
  virtual std::string why_chain() const { return {}; }
  virtual Profile profile() const = 0;
  // In force: steps may plan again, for memory that came or for places.
  virtual const PlanResult& planned() const = 0;
  // Of a step, and what was tried to find it.
  virtual int64_t parts() const { return 1; }
  virtual std::vector<runtime::PartsTried> tried() const { return {}; }
  // Forward, loss, backward, and the optimizer's step if it consumes the gradients; the loss.
  virtual at::Tensor run(const Batch& batch) = 0;
  virtual StepPeak peak() const = 0;  // of the last run
  virtual std::optional<runtime::CapturedStepReport> captured() const { return std::nullopt; }
  // See Remat.
  virtual void log_steps(int64_t steps) = 0;
  virtual std::optional<RunLog> run_log() const = 0;
};

// `model` and `options` must outlive it. `optimizer`: consumes the gradients; null: they are kept.
std::unique_ptr<PlannedSteps> make_planned_steps(const Model& model, const TrainOptions& options,
                                                 std::shared_ptr<runtime::ParameterOptimizer> optimizer);

// Forward, loss and backward of plain training, of the whole batch or of some of its rows. `from`: of the stages from
// this one on, where training_body() runs those before it; empty: of all. Both throw InputError if there is no such stage.
runtime::PartFunction training_part(const Model& model, const std::string& from = "");
runtime::BodyFunction training_body(const Model& model, const std::string& from);
// Of plain training, or of accumulation by hand in so many parts.
runtime::StepFunction training_step(const Model& model, const std::string& from, int64_t parts);

// The stages one after the other; what the plain training step computes.
at::Tensor run_stages(const Model& model, const at::Tensor& input);

}  // namespace reprise::training
