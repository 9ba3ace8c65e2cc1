// Trains the parts of a model on several processes, each within its budget.
//
//   const rt::ProcessGroup group = rt::gloo_from_environment();
//   auto step = rt::pipeline({part_of_this_rank},
//                            {.micro_batches = 8,
//                             .sample = {x},        // one micro-batch, on the first part's rank
//                             .loss = loss_of,      // of the last part's outputs and the targets
//                             .target = {y},        // of one micro-batch, on the last part's rank
//                             .budget = "8 GiB",    // of this rank
//                             .group = group.name()});
//   const at::Tensor losses = step.run({batch}, {targets});   // leaves gradients
//   optimizer.step();
//
// Problem: a model that does not fit one device lies on several. The batch is cut into
// micro-batches that run through the parts one behind the other.
//
// Guarantees: gradients and losses are equal to the last bit to those of one process that runs the
// same micro-batches one after the other, if no stage draws random numbers. The measured peak of a
// rank is the predicted one to the byte, and it is within the budget. A plan may run backwards in
// two: gradients of inputs first, those of weights later (zero bubble). Every wait is bounded by
// the timeout of the group, and a rank that fails does not leave the others waiting.
//
// Cost: each rank measures its parts once, and rank 0 plans. A step plans again only if some rank
// has less room than before.
//
// Not handled: devices other than the CPU, parameters of several parts, and gradients that are
// there before a step.
//
// Source: Qi et al., "Zero bubble pipeline parallelism", ICLR 2024; docs/pipelines.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/pipeline.h"
#include "reprise/model/units.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// Returns a tensor of one element. The losses of the micro-batches are summed, so it divides by the
// whole batch.
using PipelineLoss = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

struct PipelinedStepOptions {
  int64_t micro_batches = 1;
  Tensors sample = {};     // inputs of one micro-batch, on the rank of the first part
  PipelineLoss loss = {};  // on the rank of the last part
  Tensors target = {};     // of one micro-batch, on the rank of the last part
  // All bytes of this rank during a step. A share ("60%") is of the plain pipeline's largest peak,
  // and then it is the budget of all ranks.
  Budget budget = {};
  std::string planner = {};  // empty: "pipeline" if each rank has one part, else "interleaved"
  // The name of a process group in c10d's registry. If it is empty, this process has all parts.
  std::string group = {};
  // The longest wait for another rank; empty: the timeout of the group.
  std::optional<std::chrono::milliseconds> timeout = {};
  int64_t link_bytes_per_second = 1'000'000'000;  // between two ranks, for the predicted time
  Nanos time_limit{10'000'000'000};               // of planning
  std::string name = "pipeline";

  // The stages may know more about the tensors between two parts than the runtime does, such as the
  // containers that hold them in another language. A rank is asked for the structure of a part's
  // output once the part is measured, and the rank of the next part gets this text before it
  // measures that part.
  std::function<std::string(int32_t part)> output_structure = {};
  std::function<void(int32_t part, const std::string& structure)> input_structure = {};
  // Called after an exception of a stage that is not handed on. An interpreter may hold it, too.
  std::function<void()> forget_error = {};
};

// A PipelinedStepReport tells of the last step on this rank. Both peaks are equal to the byte.
struct PipelinedStepReport {
  std::optional<Bytes> budget = {};  // empty: no limit
  Bytes predicted_peak;
  Bytes measured_peak;
  Nanos predicted_time;
  Nanos measured_time;
  int64_t steps = 0;
  int64_t plans = 0;
};

// A PipelinedStep is made by pipeline(). Threads that call run() take turns. The process group
// outlives it.
class PipelinedStep {
 public:
  ~PipelinedStep();
  PipelinedStep(PipelinedStep&&) noexcept;
  PipelinedStep& operator=(PipelinedStep&&) noexcept;

  // Runs a step and leaves the gradients of this rank's parameters. All ranks call it together. The
  // tensors are those of the whole batch, cut along their first dimension: inputs on the rank of
  // the first part, targets on that of the last one. Returns the losses of the micro-batches on the
  // rank of the last part, and an undefined tensor on the others.
  //
  // Throws BudgetError if no plan fits or a request for memory was refused, InputError if the batch
  // or the state of the parts does not fit what was measured, and PeerError if another rank has
  // failed, has ended, or does not answer in time. Gradients are undefined afterwards, and
  // parameters and the random state are as before the step. A step of several ranks then refuses
  // all further calls: make a new group, and the pipeline anew.
  at::Tensor run(const Tensors& inputs = {}, const Tensors& targets = {});

  // Puts another plan of the problem in force, until memory changes so much that a new one is made.
  // All ranks call it together with the same plan. Throws InputError on all of them if the plan is
  // not valid for the problem.
  void use(PipelinePlan plan);
  // Lets the other ranks hear that this one has failed, so that they stop waiting.
  void tell_failure(const std::string& reason) noexcept;

  const Pipeline& problem() const;   // as it was measured
  const PipelinePlan& plan() const;  // the plan in force
  // Throws InputError if no step has run yet.
  const PipelinedStepReport& last_step() const;
  // Says which stages have a backward that cannot be split, and why; empty if there are none.
  std::vector<std::string> not_split() const;

 private:
  struct State;
  explicit PipelinedStep(std::unique_ptr<State> state);
  friend PipelinedStep pipeline(std::vector<std::vector<Stage>> parts,
                                PipelinedStepOptions options);

  std::unique_ptr<State> state_;
};

// Measures the parts of this rank and plans. Part k of a rank is number rank + k * ranks of the
// model, and every rank has as many parts. All ranks call it together, with the same micro-batches,
// planner and limit. Throws as PipelinedStep::run() does.
PipelinedStep pipeline(std::vector<std::vector<Stage>> parts, PipelinedStepOptions options);

}  // namespace reprise::runtime
