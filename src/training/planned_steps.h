// PlannedSteps runs training steps inside a budget, in one of the modes, for `reprise train`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/profile.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/remat.h"
#include "training/data.h"
#include "training/train.h"
#include "training/zoo.h"

namespace reprise::training {

struct StepPeak {
  Bytes predicted, measured;
};

class PlannedSteps {
 public:
  virtual ~PlannedSteps() = default;

  // Measures the model on this batch and plans. An infeasible budget is an answer. A relative
  // budget is a share of the predicted plain peak. Online mode needs a budget in bytes; it runs the
  // step once and undoes it, answers without a plan, and throws BudgetError if there is no room.
  virtual PlanResult prepare(const Batch& batch, Budget budget) = 0;
  // After prepare(), these functions return the mode of the steps, and the reason if kAuto became
  // kChain (else nothing).
  virtual TrainMode mode() const = 0;
  virtual std::string why_chain() const { return {}; }
  virtual Profile profile() const = 0;
  // Returns the plan in force. Steps may plan again, because of additional memory or because of
  // places in the arena.
  virtual const PlanResult& planned() const = 0;
  // These functions return the number of parts of a step, and the numbers that were tried to find
  // it.
  virtual int64_t parts() const { return 1; }
  virtual std::vector<runtime::PartsTried> tried() const { return {}; }
  // Runs forward, loss and backward, and the optimizer's step if it consumes the gradients. Returns
  // the loss.
  virtual at::Tensor run(const Batch& batch) = 0;
  virtual StepPeak peak() const = 0;  // peaks of the last run; equal where none is predicted
  virtual std::optional<runtime::CapturedStepReport> captured() const { return std::nullopt; }
  // Graph mode: see the functions of CapturedStep with these names.
  virtual void check_codecs(runtime::CodecCheck) {}
  virtual std::vector<runtime::ApproximateValue> approximate_values() const { return {}; }
  // Graph mode: see CapturedStep::guards().
  virtual std::vector<std::string> guards() const { return {}; }
  virtual std::optional<runtime::OnlineReport> online() const { return std::nullopt; }
  // Chain mode and graph mode: the memories of the plan, and what the last step moved to them.
  virtual Machine machine() const { return {}; }
  virtual MovedInStep moved() const { return {}; }
  // Graph mode: brings back what plans have moved away between the steps
  // (CapturedStep::fetch_optimizer_state() and fetch_parameters()).
  virtual void fetch() {}
  // See Remat::log_steps().
  virtual void log_steps(int64_t steps) = 0;
  virtual std::optional<RunLog> run_log() const = 0;
};

// `model` and `options` must outlive the result. `optimizer` consumes the gradients; if it is null,
// the gradients are kept.
std::unique_ptr<PlannedSteps> make_planned_steps(
    const Model& model, const TrainOptions& options,
    std::shared_ptr<runtime::ParameterOptimizer> optimizer);

// training_part() returns forward, loss and backward of plain training, for the whole batch or for
// some of its rows. If `from` names a stage, the part begins there, and training_body() runs the
// stages before it. If `from` is empty, the part has all stages. Both functions throw InputError if
// there is no such stage.
runtime::PartFunction training_part(const Model& model, const std::string& from = "");
runtime::BodyFunction training_body(const Model& model, const std::string& from);
// Returns the step of plain training, or of accumulation by hand in this many parts.
runtime::StepFunction training_step(const Model& model, const std::string& from, int64_t parts);

// Runs the stages one after the other, as the plain training step does.
at::Tensor run_stages(const Model& model, const at::Tensor& input);

}  // namespace reprise::training
