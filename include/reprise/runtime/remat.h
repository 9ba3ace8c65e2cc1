// Trains a model inside a byte budget: measures it, plans, and runs the plan as one autograd node.
//
//   auto model = reprise::runtime::remat(sequential, sample, {.budget = "700 MiB"});
//   auto loss = torch::nn::functional::cross_entropy(model->forward(x), y);
//   loss.backward();   // as usual
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/observer.h"
#include "reprise/model/profile.h"
#include "reprise/model/runlog.h"
#include "reprise/model/units.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/measure.h"
#include "reprise/runtime/offload.h"
#include "reprise/runtime/overhead.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// The schedule class of the plans that the runtime runs (PlanOptions::schedule_class). LibTorch's
// autograd graph of a stored stage holds the input that its backward reads, so a plan that frees
// this input would free no memory.
inline constexpr const char* kScheduleClass = "persistent";
// Returns the name of this class for a planner: what `floating` adds drops no such input.
inline const char* schedule_class_for(const std::string& planner) {
  return planner == "floating" ? "floating" : kScheduleClass;
}

struct RematOptions {
  // The limit on all device bytes during a step: parameters, gradients, optimizer state, the batch,
  // and whatever else is live. A share ("60%") is of the peak of plain training when it is first
  // named, and stays this number of bytes. The default is no limit, which gives plain training.
  Budget budget = {};
  std::string planner = {};          // empty: "chain", or "levels" if values may move
  Nanos time_limit{10'000'000'000};  // of planning
  // The loss that training computes from the output. The plan includes its memory. The function is
  // called with outputs of any batch size. The default is cross-entropy over dimension 1 for
  // outputs of two dimensions and more, else the mean square.
  Loss loss = {};
  // If true, a request beyond the budget during a step throws BudgetError, where the memory of the
  // device can be limited (set_memory_limit()). The model, its gradients and the random state are
  // then as they were before the step.
  bool enforce = true;
  MeasureOptions measure = {};
  // Says where values may move while nothing reads them. If a copy fails, the step ends with
  // InputError, and everything is as before the step.
  OffloadOptions offload = {};
  // The name of a process group in c10d's registry whose ranks train the same stages; stages with
  // sharded parameters or with other ways need it. All ranks plan and take steps together. Bytes
  // and times are then the largest of all ranks, the smallest budget holds, and rank 0 plans for
  // all.
  std::string group = {};
  // Returns what lives beside the contents of the modules: this rank's part of sharded parameters,
  // and its gradients.
  std::function<Tensors()> resident = {};
  // Has the meaning of CaptureOptions::foreseen.
  std::function<Bytes()> foreseen = {};
  Observer observer = {};
};

// A StepReport is about the last step that ran both forward and backward.
struct StepReport {
  Bytes budget;          // the largest Bytes when there is no limit
  Bytes predicted_peak;  // equal to measured_peak on CPU, to the byte
  Bytes measured_peak;
  int64_t steps = 0;  // since the model was made
  int64_t plans = 0;  // so far: one per kind of input, and one whenever other memory came or went
  Bytes moved_out = {}, moved_in = {};  // to the disk and back
  Nanos waited = {};                    // by the step, for copies
  // The last captures, measurements and searches for plans, at most 32.
  std::vector<Overhead> overheads = {};
  std::string offload_choice = {};      // what OffloadOptions "auto" picked, and why; else empty

  bool operator==(const StepReport&) const = default;
};

// A Remat is the model as a module. Its parameters, buffers, state_dict keys, to(), train(), eval()
// and zero_grad() are those of the stages' modules.
//
// Under no_grad, and for inputs and parameters without gradients, forward simply runs the stages.
// With gradients it runs the plan as one autograd node. The node hands over the gradients of all
// parameters at the end of its backward pass, so that each hook fires once for its parameter. A
// second backward over one step and double backward (create_graph) are not supported and throw
// InputError.
//
// Another shape, type, device, train flag or autocast state is measured and planned again. A step
// also plans again when other memory (optimizer state, say) leaves the plan too little room. When
// no plan fits, the step throws BudgetError before it changes anything.
class Remat : public torch::nn::Module {
 public:
  Remat(std::vector<Stage> stages, RematOptions options);
  ~Remat() override;

  at::Tensor forward(const at::Tensor& input);  // for one input tensor and one output tensor
  Tensors forward(const Tensors& inputs);

  // Measures and plans for inputs like these, without running a step. The inputs are not changed.
  void plan_for(const Tensors& inputs);

  // Sets the budget from the next step on. Measurements are kept.
  void set_budget(Budget budget);

  // These functions describe the last plan. They throw InputError when nothing was planned yet.
  const PlanResult& plan() const;
  const Chain& chain() const;
  // Returns the memories of the plan: the device alone if values cannot move.
  const Machine& machine() const;
  Profile profile() const;
  StepReport last_step() const;
  // Returns how many measurements and searches there were so far (StepReport::overheads).
  int64_t overhead_count() const;

  // Measures the next `steps` steps action by action: the time of every run, and the most memory
  // while it runs. Measuring costs some microseconds a run.
  void log_steps(int64_t steps);
  // Returns the log of the measured steps that ran the current plan, with medians of times. It is
  // absent if there are no such steps.
  std::optional<RunLog> run_log() const;

  struct State;  // shared with the steps in flight

 private:
  std::shared_ptr<State> state_;
};

// Measures on `sample` and plans. When the budget is infeasible, the function throws BudgetError
// with the smallest feasible budget. The sample stays the caller's and is not changed.
//
// Children are registered under the names of the stages ('.' becomes '_'). A module of several
// stages is registered once.
std::shared_ptr<Remat> remat(std::vector<Stage> stages, const Tensors& sample,
                             RematOptions options = {});

}  // namespace reprise::runtime
