// One training step of a chain: the forward half of its plan, and, when the gradient of the loss arrives,
// the backward half.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/state/autocast.h"
#include "runtime/chain/measure.h"
#include "runtime/chain/passes.h"
#include "runtime/chain/prepare.h"
#include "runtime/state/random_state.h"
#include "reprise/model/chain.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/run/interpreter.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/chain/step_buffers.h"
#include "runtime/device/step_log.h"

namespace reprise::runtime::internal::chain {

// A stage did not do what it did when it was prepared, and what it does depends on nothing that a plan is bound
// to. `undone`: all is as before the step, which may run again once the model is prepared anew.
class StageChanged : public InputError {
 public:
  StageChanged(const std::string& stage, const std::string& what, bool undone)
      : InputError("stage '" + stage + "' " + what +
                   ", other than when it was measured: does that depend on an attribute? The next "
                   "step measures it again"),
        undone_(undone) {}
  bool undone() const { return undone_; }

 private:
  bool undone_;
};

// A model with a plan: all that its steps have in common. Outlives them.
struct PlannedModel {
  PreparedModel model;
  StepBuffers buffers;
  Chain chain;
  std::vector<std::vector<SavedForm>> saved_form;  // of every stage's options
  std::vector<bool>
      copies_gradients;             // of every stage: its backward takes memory for that at its end
  std::vector<size_t> saved_stage;  // of each saved value, from value 3L+2 on
  std::shared_ptr<const Program> program;
  std::shared_ptr<const Passes> passes;  // of the program
  int64_t last_step = 0;                 // number of the step that began last
  bool outdated = false;                 // a stage was seen to do something else

  explicit PlannedModel(PreparedModel prepared);
  void set_measured(MeasuredChain measured);  // before a plan
  void set_plan(const Graph& graph, const std::vector<Action>& actions);
};

// Not thread-safe; one object a step. After an exception of either half the random state and the
// advanced buffers are as they were before the step; gradients are only handed over at its end. What
// fails between the halves is the caller's to see, who calls undo().
class ChainStep final : public Backend {
 public:
  ChainStep(std::shared_ptr<PlannedModel> planned, Tensors input);

  Tensors forward();                           // x_L, detached
  Tensors backward(Tensors output_gradients);  // g_0, then the gradients of model.parameters
  // Between the halves: the buffers and the random state are as before the step. Does nothing when another
  // step of the model has begun since.
  void undo() const;
  const PlannedModel& planned() const { return *planned_; }
  const std::shared_ptr<const Program>& program() const { return program_; }

  // Before the step: measure its runs with this, which must outlive it. Each stage is a pass of its own then.
  void measure_with(device::StepMeter* meter);

  void run(const RunAction& step) override;
  void free(ValueIndex value) override;

 private:
  void run_forward_op(size_t stage, const RunAction& step);
  void run_forward(size_t stage, size_t variant);
  void run_watched(size_t stage, size_t variant);
  void check_outputs(size_t stage) const;
  Kept pass_before(size_t stage);
  void run_backward_op(size_t stage, size_t option);
  void check_unchanged(size_t stage) const;
  void walk(size_t begin, size_t end);
  template <class Work>
  void guarded(Work&& work);

  std::shared_ptr<PlannedModel> planned_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<const Passes> passes_;
  ChainIndex index_;
  std::vector<Tensors> activations_, gradients_;    // per boundary
  std::vector<std::optional<Kept>> kept_;           // per stage
  std::vector<std::optional<state::RandomState>> random_;  // per stage that draws, before its first run
  std::vector<bool> wrote_still_;                   // per stage: buffers that no run advances
  std::vector<int64_t> versions_;                   // of the parameters
  std::vector<int64_t> input_versions_;
  GradientBook book_;
  state::RandomState random_before_, random_now_;
  state::AutocastState autocast_;
  device::StepMeter* meter_ = nullptr;
  int64_t number_ = 0;
  bool done_ = false;
};

}  // namespace reprise::runtime::internal::chain
