// One call for every training step: train_step() takes the best mode that works for it.
//
//   auto step = reprise::runtime::train_step([&](const Tensors& in) {
//     auto loss = torch::nn::functional::cross_entropy(model->forward(in[0]), in[1]);
//     loss.backward();
//     return loss;
//   }, {x, y}, {.plan = {.budget = "700 MiB"}});
//   std::cout << step.explain() << "\n";    // the mode, and why
//   at::Tensor loss = step.run({x, y});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reprise/model/units.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime {

// StepMode is the way in which a step runs.
enum class StepMode {
  kFollow,        // The function runs at every call, beside a plan (CaptureOptions::follow).
  kGraph,         // recorded, planned and replayed
  kGuardedGraph,  // the same, and numbers that the step reads out of tensors are compared
  kOnline,        // as it is written: values are evicted and made again
};

// Returns "follow", "graph", "guarded graph" or "online".
const char* to_string(StepMode mode);

struct TrainStepOptions {
  // The only mode that may be taken. Absent: follow mode where it works, then graph mode, then online
  // mode. kGraph and kGuardedGraph ask for the same.
  std::optional<StepMode> mode = {};
  // These options are for follow mode and graph mode. `follow` and `on_miss` are not looked at: in
  // graph mode a call that is not what was recorded is recorded. `optimizer` makes the optimizer's
  // step a part of the step in each mode, and leaves no gradients behind.
  CaptureOptions capture = {};
  // The budget is for all modes; the other options are for follow mode and graph mode. For a share of
  // plain training's peak, the step runs once without a limit.
  StepPlanOptions plan = {};
  std::string heuristic = "dtr";  // chooses what online mode evicts
};

// A ModeTried is a mode that was tried for a step.
struct ModeTried {
  StepMode mode = StepMode::kGraph;
  bool works = false;
  std::string reason = {};  // in words

  bool operator==(const ModeTried&) const = default;
};

// A TrainStepReport is about the last run.
struct TrainStepReport {
  StepMode mode = StepMode::kGraph;
  Bytes budget;                              // the largest Bytes if there is no limit
  std::optional<Bytes> predicted_peak = {};  // Calls without a plan have none.
  Bytes measured_peak;
  // Numbers of steps so far, by mode.
  int64_t follow_steps = 0, graph_steps = 0, online_steps = 0;
  int64_t left = 0;  // number of steps of follow mode so far that ran without a plan

  bool operator==(const TrainStepReport&) const = default;
};

// A TrainStep runs a training step inside a budget, in the best mode that works. Its results are
// equal to the last bit to those of the function, unless CaptureOptions::alternatives allows less.
//
// In follow mode a call that is not what was recorded goes on as it is written. If the mode fails at
// a call before the function has begun, the next mode that works runs the call, and all later ones.
// Threads that call one TrainStep take turns.
class TrainStep {
 public:
  TrainStep(StepFunction step, Tensors sample, TrainStepOptions options);
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;
  TrainStep& operator=(TrainStep&&) noexcept;

  // Runs the step. run() returns the first tensor that the function returns, run_all() returns all
  // of them, without history. After an exception all is as CapturedStep::run() and Online say.
  at::Tensor run(const Tensors& inputs);
  Tensors run_all(const Tensors& inputs);

  StepMode mode() const;
  // Returns the modes that were tried, in their order. A mode that failed later is here, too.
  const std::vector<ModeTried>& tried() const;
  // Returns what differed in the last call that was not what was recorded; empty if there was none.
  std::string last_miss() const;
  // Returns the mode, the reason for it, and the reasons against the modes before it, a line each.
  std::string explain() const;
  // Throws InputError if the step has not run yet.
  TrainStepReport last_step() const;
  // Returns the captured step of follow mode or graph mode, or null in online mode.
  const CapturedStep* captured() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// Takes the first mode that works. In follow mode nothing runs here. The other modes run the function
// a few times on the sample; parameters, gradients, buffers, optimizer state and the random state are
// left as they were. A recording of graph mode takes plain training's memory.
//
// In follow mode a call that begins while parameters have gradients runs without a plan, because
// nobody tells the step that the function looks at them: let zero_grad() stand between two calls.
//
// There is no chain mode here, because the stages of a step are not seen in C++: use Remat for a
// model that is a sequence of stages.
//
// Throws BudgetError if no mode fits the budget, and InputError if an option is wrong or no mode can
// run the step. Each has a line for each mode. An exception of the step itself passes unchanged.
template <class Step>
TrainStep train_step(Step step, Tensors sample, TrainStepOptions options = {}) {
  if constexpr (std::is_same_v<std::invoke_result_t<Step&, const Tensors&>, at::Tensor>) {
    auto list = [step = std::move(step)](const Tensors& in) mutable { return Tensors{step(in)}; };
    return TrainStep(std::move(list), std::move(sample), std::move(options));
  } else {
    return TrainStep(std::move(step), std::move(sample), std::move(options));
  }
}

}  // namespace reprise::runtime
