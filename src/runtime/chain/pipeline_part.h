// This is a part of a pipeline: consecutive stages of a model, of which several micro-batches are
// under way at a time. The owner carries the messages between parts and calls each function when
// the order of a plan says so (model/pipeline.h). The memory of the part is then that of the plan,
// to the byte: messages are held here from receive() to their last use, and from forward() or
// backward() to sent(), as lower() of model/pipeline.h counts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/pipeline.h"
#include "reprise/runtime/measure.h"
#include "runtime/chain/execute.h"
#include "runtime/chain/plan_key.h"
#include "runtime/device/activity.h"
#include "runtime/device/limit_scope.h"

namespace reprise::runtime::internal::chain {

// A part is not thread-safe. The stages of a part have no parameter in common. A function throws
// InputError if it does not fit what came before.
class PipelinePart {
 public:
  // Measures the stages on `sample`, the input of one micro-batch. Inputs that require gradients
  // send them to the part before. `loss` is for the last part; the others have an empty one.
  // `forget_error`: Splitting::forget_error.
  PipelinePart(std::vector<Stage> stages, const Tensors& sample, const Loss& loss,
               const MeasureOptions& options, const std::function<void()>& forget_error = {});

  // Returns the stages as they stand in the chain of the pipeline. The loss is that of the last
  // part.
  const Chain& chain() const { return planned_->chain; }
  // Returns the outputs of a micro-batch, without bytes. They require gradients if the part wants
  // some back.
  const Tensors& outputs() const { return outputs_; }
  // Returns the bytes that the gradients of the outputs take as messages.
  Bytes output_gradient_bytes() const;
  // Returns for each stage what its weight gradients cost apart from the rest of its backward, or
  // why they cannot be computed apart.
  const std::vector<MeasuredSplit>& splits() const { return planned_->splits; }
  // Returns the bytes of parameters and buffers that the allocator does not count.
  int64_t uncounted() const;

  // Takes the plans of part number `part`. The plan is valid for the problem.
  void use(const PipelinePlan& plan, size_t part);
  // Takes a plan that keeps all that backwards need. The part runs no loss.
  void keep_everything(int64_t micro_batches);

  // A step begins: with a limit on the bytes of this process, or without.
  void begin_step(std::optional<int64_t> limit);
  void end_step();
  // Drops all micro-batches. The gradients of the parameters are dropped, too, and the random state
  // is that of begin_step().
  void abort_step();

  // Sets the input of a micro-batch: of the first part, or of a part whose predecessor is here.
  void give(int64_t micro_batch, Tensors input);
  void take_input_from(PipelinePart& before, int64_t micro_batch);
  void take_gradient_from(PipelinePart& behind, int64_t micro_batch);
  // Sets the gradients of those outputs that want one.
  void give_gradient(int64_t micro_batch, Tensors gradient);
  // Returns room for a message, which the owner fills before the part reads it.
  Tensors receive(int64_t micro_batch, MessageKind message);
  // Returns what is to be sent. The part holds it until sent().
  const Tensors& message(int64_t micro_batch, MessageKind message) const;
  void sent(int64_t micro_batch, MessageKind message);

  void forward(int64_t micro_batch);
  // Runs the backward of a part and adds to the gradients of its parameters. The last part applies
  // `loss` to its output and writes the value to `value`, a tensor of one element.
  void backward(int64_t micro_batch, const Loss& loss = {}, const at::Tensor& value = {}) {
    run_back(micro_batch, loss, value, false);
  }
  // The same in two: the second half runs the weight parts of those stages that have them.
  void input_gradient(int64_t micro_batch, const Loss& loss = {}, const at::Tensor& value = {}) {
    run_back(micro_batch, loss, value, true);
  }
  void weight_gradient(int64_t micro_batch);

 private:
  // A Way says how a micro-batch runs: by a program, and where its halves begin and end.
  struct Way {
    std::shared_ptr<const Program> program;
    size_t forward_end = 0, backward_begin = 0;
  };
  // A Flight is a micro-batch under way.
  struct Flight {
    Tensors input, gradient;                   // until the part has taken them over
    Tensors output_message, gradient_message;  // until they are sent
    std::unique_ptr<ChainStep> step;
    std::optional<ChainStep::LaterWork> later;  // between input_gradient() and weight_gradient()
  };

  Way way_of(const PartPlan& plan, int32_t first_stage) const;
  Flight& flight(int64_t micro_batch);
  const Way& way(int64_t micro_batch) const;
  void run_back(int64_t micro_batch, const Loss& loss, const at::Tensor& value, bool split);
  void run_loss(ChainStep& step, const Loss& loss, const at::Tensor& value) const;
  void add_gradients(const std::vector<size_t>& positions, GradientBook& book) const;
  void require_unchanged() const;

  std::vector<Stage> stages_;
  std::shared_ptr<PlannedModel> planned_;
  Tensors inputs_, outputs_;  // without bytes
  bool has_loss_ = false, gets_input_ = false;
  std::optional<PlanKey> key_;
  std::vector<Way> ways_;
  std::vector<int32_t> way_of_;  // by micro-batch
  std::map<int64_t, Flight> flights_;
  std::optional<device::StepUnderWay> under_way_;
  std::optional<device::LimitScope> limit_;
  std::optional<state::RandomState> random_before_;
};

}  // namespace reprise::runtime::internal::chain
