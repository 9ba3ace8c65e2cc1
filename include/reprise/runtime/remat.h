// Train a model inside a byte budget: measure it, plan, run the plan as one autograd node.
//
//   auto model = reprise::runtime::remat(sequential, sample, {.budget = "700 MiB"});
//   auto loss = torch::nn::functional::cross_entropy(model->forward(x), y);
//   loss.backward();   // as usual
#pragma once

#include <torch/nn/module.h>

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
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// The schedules that the runtime runs (PlanOptions::schedule_class). LibTorch's graph of a kept stage
// holds the input that its backward reads: dropping it would free nothing.
inline constexpr const char* kScheduleClass = "persistent";

struct RematOptions {
  // All device bytes during a step: parameters, gradients, optimizer state, the batch, and whatever else
  // is live. A share ("60%") is of the peak of plain training. Default: no limit, plain training.
  Budget budget = {};
  std::string planner = "chain";
  Nanos time_limit{10'000'000'000};  // of planning
  // What training does with the output; its memory is planned for. Called with outputs of any batch size.
  // Default: cross-entropy over dimension 1 for outputs of two dimensions and more, else the mean square.
  Loss loss = {};
  // On CPU: a request beyond the budget during a step throws BudgetError, and the model, its gradients
  // and the random state are as before the step.
  bool enforce = true;
  MeasureOptions measure = {};
  Observer observer = {};
};

// What the last step that ran forward and backward took.
struct StepReport {
  Bytes budget;          // the largest Bytes when there is no limit
  Bytes predicted_peak;  // equal to measured_peak on CPU, to the byte
  Bytes measured_peak;
  int64_t steps = 0;  // since the model was made
  int64_t plans = 0;  // made so far: one per kind of input, and when other memory came or went

  bool operator==(const StepReport&) const = default;
};

// The model as a module: parameters, buffers, state_dict keys, to(), train(), eval(), zero_grad() are those of
// the stages' modules. Under no_grad (and for inputs and parameters without gradients) forward simply
// runs the stages. With gradients it runs the plan: one autograd node, which hands the gradients of all
// parameters over at the end of its backward pass, so that hooks fire once a parameter. Not supported,
// with an InputError: a second backward over one step, and double backward (create_graph).
//
// Another shape, type, device, train flag or autocast state measures and plans again. A step also plans
// again when other memory (optimizer state, say) leaves the plan too little room, and throws BudgetError
// before it changes anything when no plan fits.
class Remat : public torch::nn::Module {
 public:
  Remat(std::vector<Stage> stages, RematOptions options);
  ~Remat() override;

  at::Tensor forward(const at::Tensor& input);  // for one input and one output tensor
  Tensors forward(const Tensors& inputs);

  // Measures and plans for inputs like these, without running a step. The input is not changed.
  void plan_for(const Tensors& inputs);

  // From the next step on. What was measured is kept.
  void set_budget(Budget budget);

  // Of the last plan. Throws InputError when nothing was planned yet.
  const PlanResult& plan() const;
  const Chain& chain() const;
  Profile profile() const;
  StepReport last_step() const;

  // Measures the next so many steps action by action: the time of every run, and the most memory while it
  // runs. Costs some microseconds a run.
  void log_steps(int64_t steps);
  // Of the steps that were measured, as far as they ran the plan that there is: medians of times. None if
  // there are no such steps.
  std::optional<RunLog> run_log() const;

  struct State;  // shared with the steps in flight

 private:
  Tensors run_planned(const Tensors& inputs);
  std::shared_ptr<State> state_;
};

// Measures on `sample` and plans; BudgetError when the budget is infeasible, with the smallest one that is
// not. The sample stays the caller's and is not changed.
//
// Children are registered under the stages' names ('.' becomes '_'), a module of several stages once.
std::shared_ptr<Remat> remat(std::vector<Stage> stages, const Tensors& sample,
                             RematOptions options = {});

}  // namespace reprise::runtime
