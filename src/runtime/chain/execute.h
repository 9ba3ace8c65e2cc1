// Runs one training step of a chain, or of several branches that meet in one loss: the forward half
// of the plan and, when the gradient of the loss arrives, the backward half.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/run/interpreter.h"
#include "runtime/chain/moved_values.h"
#include "runtime/chain/planned_model.h"
#include "runtime/chain/split_backward.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/device/step_log.h"
#include "runtime/state/autocast.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime::internal::chain {

// A StageChanged is thrown if a stage computes something else than when it was prepared, although
// shapes, types, devices and modes are the same. If `undone`, everything is as before the step,
// which may run again once the model is prepared anew.
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

// One object runs one step. It is not thread-safe. After an exception in either half, the random
// state and the advanced buffers are as they were before the step. Gradients are handed over only
// at the end of the step. If something fails between the halves, the caller has to notice it and to
// call undo().
class ChainStep final : public Backend {
 public:
  // `inputs` are those of each branch.
  ChainStep(std::shared_ptr<PlannedModel> planned, std::vector<Tensors> inputs);

  // Returns x_L of every branch, or what the tail makes of them, detached.
  Tensors forward();
  // Returns g_0 of every branch, the last branch first, then the gradients of model.parameters.
  Tensors backward(Tensors output_gradients);
  // To be called between the halves: restores the buffers and the random state to those before the
  // step. Does nothing if another step of the model has begun since.
  void undo() const;
  const PlannedModel& planned() const { return *planned_; }
  const std::shared_ptr<const Program>& program() const { return program_; }

  // Instead of forward() and backward(), the owner may run the step in pieces, with other steps of
  // the model in between. begin_in_pieces() comes first. Each stage is then a pass of its own, and
  // `take` gets the positions of its parameters and the book after its backward.
  using TakeGradients = std::function<void(const std::vector<size_t>&, GradientBook&)>;
  void begin_in_pieces(TakeGradients take);
  // Walks the entries [begin, end) of the program. The loss is not among them.
  void advance(size_t begin, size_t end);
  Tensors output() const { return activations_.back(); }
  // Returns the output. The step no longer holds it if the loss gives it back.
  Tensors output_for_loss();
  void set_output_gradients(Tensors gradients) { gradients_.back() = std::move(gradients); }
  Tensors take_input_gradients();  // g_0, at the end of the step
  // From now on, backwards leave the weight gradients for later, where they can be split.
  void split_backwards() { splits_ = true; }
  // The work that is left to do, in the order of the backwards, each with its stage.
  using LaterWork = std::vector<std::pair<size_t, WeightWork>>;
  LaterWork take_later_work() { return std::move(later_); }

  // Returns the bytes that the step has moved so far.
  transfer::MovedBytes moved() const { return moved_ ? moved_->moved() : transfer::MovedBytes(); }

  // To be called before the step: measures its runs with `meter`, which must outlive the step. Each
  // stage is then a pass of its own.
  void measure_with(device::StepMeter* meter);

  void run(const RunAction& step) override;
  void free(ValueIndex value, int32_t memory) override;
  void copy(const CopyAction& copy) override;
  void wait(ValueIndex value, int32_t memory) override;

 private:
  void run_forward_op(size_t stage, const RunAction& step);
  void run_forward(size_t stage, std::optional<size_t> option);
  void run_kept(size_t stage, size_t number);
  bool run_early(size_t stage, size_t option);
  void note_moving(size_t stage, ValueIndex value, std::vector<device::WeakStorage> storages);
  transfer::Carrier& carrier();
  void run_watched(size_t stage, std::optional<size_t> option);
  void check_outputs(size_t stage) const;
  ForwardRun run_of(size_t stage, const RunAction& step) const;
  void check_returned(const PreparedStage& prepared, size_t returned,
                      const std::vector<torch::autograd::Edge>* roots) const;
  Tensors run_tail(Tensors inputs);
  std::vector<Tensors> loss_gradients(Tensors output_gradients);
  Kept pass_before(size_t stage);
  void run_backward_op(size_t stage, size_t option);
  void run_first_half(size_t stage, Kept kept);
  void check_unchanged(size_t stage) const;
  void walk(size_t begin, size_t end);
  template <class Work>
  void guarded(Work&& work);

  std::shared_ptr<PlannedModel> planned_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<const Passes> passes_;
  const Places places_;
  std::vector<Tensors> activations_, gradients_;           // per boundary
  std::vector<std::optional<Kept>> kept_;                  // per stage
  std::vector<std::optional<state::RandomState>> random_;  // per stage, before its first run
  std::vector<bool> wrote_still_;                     // per stage: buffers that no run advances
  std::vector<int64_t> versions_;                     // of the parameters
  std::vector<std::vector<int64_t>> input_versions_;  // by branch
  std::optional<Kept> kept_tail_;
  Tensors shared_gradients_;  // of the loss: shared_between()
  GradientBook book_;
  state::RandomState random_before_, random_now_;
  state::AutocastState autocast_;
  TakeGradients take_gradients_;  // empty: the book is for the end of the step
  bool splits_ = false;
  LaterWork later_;
  device::StepMeter* meter_ = nullptr;
  std::optional<MovedValues> moved_;                 // if the plan moves values
  std::vector<device::WeakStorage> saved_storages_;  // of the run under way, if they move
  uint64_t began_ = 0;  // the allocator's serial number at the beginning
  int64_t number_ = 0;
  bool done_ = false;
};

}  // namespace reprise::runtime::internal::chain
