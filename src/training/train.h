// train() does the main job: it trains a model of the zoo on data inside a budget, and compares
// with plain training.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/observer.h"
#include "reprise/model/profile.h"
#include "reprise/model/runlog.h"
#include "reprise/model/units.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/offload.h"
#include "reprise/runtime/online.h"
#include "reprise/runtime/process_group.h"
#include "reprise/runtime/remat.h"
#include "training/zoo.h"

namespace reprise::training {

// A TrainMode is the thing that is planned: the stages of the model, or the operations of the
// captured step; or nothing, and values are evicted while the step runs. kAuto stands for kGraph
// where the step can be captured, and for kChain elsewhere.
enum class TrainMode { kAuto, kChain, kGraph, kOnline };

enum class OptimizerKind { kSgd, kAdam };

// A LearningRateSchedule is the learning rate over the steps: the same in all of them, or falling
// in a straight line towards zero, which it would reach one step after the last.
enum class LearningRateSchedule { kConstant, kLinear };

struct TrainStep {
  int64_t number = 0;  // from 1
  int64_t of = 0;      // steps that were asked for
  int64_t epoch = 0;   // from 1
  double loss = 0;     // the average over the ranks of a group
  Nanos time = {};     // forward, loss and backward; the optimizer's step if it consumes gradients
  Bytes peak = {};     // measured
  Bytes budget = {};   // the largest Bytes if there is no budget
};

struct TrainOptions {
  ModelConfig model = {};
  std::string data = "synthetic";  // see open_dataset()
  Budget budget = {};              // a share is of plain training's measured peak
  TrainMode mode = TrainMode::kAuto;
  runtime::AlternativeOptions alternatives = {};
  std::string planner = {};  // empty: the mode's own
  // Chain mode and graph mode: where values may move while nothing reads them.
  runtime::OffloadOptions offload = {};
  // Says whether the optimizer's state lies in that memory between the steps. It needs
  // `consume_gradients` (StepPlanOptions::offload_optimizer).
  bool offload_optimizer = false;
  // Says the same of the parameters (StepPlanOptions::offload_parameters).
  bool offload_parameters = false;
  Nanos time_limit{10'000'000'000};
  int64_t steps = 0;  // 0: epochs
  int64_t epochs = 1;
  OptimizerKind optimizer = OptimizerKind::kSgd;
  double learning_rate = 0;  // 0: 0.05 for SGD (0.02 with momentum), 0.001 for Adam
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;
  double momentum = 0;  // for SGD; above 0 it keeps one more tensor a parameter
  // Graph mode: the optimizer's step is part of the planned step, and each gradient ends there
  // (CaptureOptions::optimizer).
  bool consume_gradients = false;
  // Graph mode: the number of parts of a step along the batch (micro_batches.h). 0 stands for the
  // number with the fastest plan.
  int64_t micro_batches = 1;
  // A step is in parts from this stage on, and the whole batch goes through the stages before it.
  // An empty text puts all stages in parts.
  std::string parts_from = {};
  uint64_t seed = 1;
  // Trains data parallel: the processes of this group train one model together, each on batches of its
  // own. Steps are in graph mode. Nothing is compared with plain training, whose gradients are those
  // of one rank. Null: this process trains alone. It must outlive the training.
  const runtime::ProcessGroup* group = nullptr;
  // With a group and `consume_gradients`: see CaptureOptions::shard_optimizer.
  bool shard_optimizer = false;
  // Runs plain training first (which needs its full memory), for the comparison and the check of
  // the first step. Without the check, shares of the budget are shares of the predicted plain peak.
  bool check = true;
  // The number of pairs of a plain and a planned step that are timed before training. One more pair
  // runs before them: it is compared bit by bit, and its planned step touches its memory for the
  // first time.
  int compare_steps = 5;
  // The run's saved state is in this folder (saved_run.h); empty for none. Training goes on from
  // the state that is there, and saves its own at the end and every `save_every` steps (0: at the
  // end).
  std::string state = {};
  int64_t save_every = 0;
  int64_t log_steps = 0;        // steps to measure action by action, from the third on
  int64_t test_samples = 2000;  // most samples of the test; 0: no test
  Observer observer = {};       // measuring and planning
  // Told once, before training: the mode of the steps (never kAuto), and the reason where kAuto became
  // kChain.
  std::function<void(TrainMode mode, const std::string& why_chain)> on_mode = {};
  std::function<void(const TrainStep&)> on_step = {};
  std::function<bool()> stop = {};  // asked after every step
};

// An ApproximateUse is an alternative of exactness `approximate` that the plan uses, and what the
// first step did with it.
struct ApproximateUse {
  std::string alternative;      // "compressed-8"
  int64_t values = 0;           // that it keeps
  Bytes plain = {}, kept = {};  // bytes of these values, and of what is kept in their place
  // The value whose error comes closest to what the codec states: the error that was found, and the
  // bound, over the largest element of the value.
  double error = 0, bound = 0;
  bool within_bounds = true;  // whether no element of any value was off by more than its bound
};

// MovedInStep has the bytes that a step moved to the memory of TrainOptions::offload, how long it
// waited for them, and which memory was picked if the options left that to the runtime.
struct MovedInStep {
  Bytes out, in;
  Nanos waited;
  std::string choice = {};
};

struct TrainReport {
  // If it has no plan and the mode is not kOnline, nothing was trained.
  PlanResult plan;
  Profile profile;
  TrainMode mode = TrainMode::kChain;  // mode of the steps: never kAuto
  std::string data;                    // description of the data set
  Bytes budget;
  Bytes parameters;           // bytes of parameters, buffers and optimizer state
  int ranks = 1;              // processes that trained together
  int64_t steps = 0;          // steps that were done, those before the saved state included
  int64_t went_on_after = 0;  // the steps of the saved state that training began with
  bool stopped = false;       // by TrainOptions::stop
  // These peaks and times are those of plain and planned steps; they are absent without the check.
  std::optional<Bytes> plain_peak;
  std::optional<Nanos> plain_time;    // typical time of the plain steps that were timed
  std::optional<Nanos> planned_time;  // typical time of the planned steps between them
  int64_t timed_pairs = 0;            // number of these pairs
  // The smaller Profile::processor_percent of two: while the model was measured, and while steps
  // were compared.
  int64_t processor_percent = 100;
  int64_t parts = 1;                       // parts of a step
  std::vector<runtime::PartsTried> tried;  // graph mode
  // Says whether loss, gradients, buffers and random state of the first step are equal to plain
  // training's. If gradients are consumed, parameters and optimizer state take their place. A step
  // in parts is compared with gradients that are accumulated by hand.
  std::optional<bool> gradients_equal;
  // Both numbers are set if the first step is not equal and the plan uses an alternative of other
  // rounding. The first number is the largest difference of an element of loss, gradients, buffers
  // or optimizer state over the largest element of its tensor; for parameters it is over the
  // largest change of one. It is infinite if random state or whole numbers differ, or if only one
  // of two values is a number. The second number is the same for plain training after each
  // parameter moved to the next number. Near kinks (ReLU, max pooling) such a move changes which
  // element gets a gradient, and the difference grows from layer to layer.
  std::optional<double> largest_difference, last_bit_difference;
  // If the plan uses approximate alternatives, the step above reads what they encode as it was, so
  // that it is compared as if they were left out. The other step, in which they are in force, is
  // compared alternative by alternative, with the bound that each states. Its loss, buffers and
  // random state are those of plain training to the bit, unless an alternative of other rounding is in
  // force, too; `approximate_difference` is how far its gradients are off, as `largest_difference`
  // says for rounding.
  std::vector<ApproximateUse> approximate;
  std::optional<bool> approximate_forward_equal;
  std::optional<double> approximate_difference;
  // Set if the first step is not equal although the plan uses no such alternative: whether a second
  // plain step has the bits of the first one.
  std::optional<bool> plain_repeats;
  Bytes predicted_peak, measured_peak;  // the largest peaks of all steps
  bool peaks_equal = true;  // predicted = measured in every step; online mode predicts nothing
  // Graph mode: the report of the last step. `fallbacks` counts the allocations of all steps that
  // did not find their place.
  std::optional<runtime::CapturedStepReport> captured;
  int64_t fallbacks = 0;
  // Graph mode: the settings that are compared before each step, beside inputs and modules.
  std::vector<std::string> guards;
  std::optional<runtime::OnlineReport> online;  // online mode: the report of the last step
  // With TrainOptions::offload: the memories, and what the last step moved.
  Machine machine;
  std::optional<MovedInStep> moved;
  // With TrainOptions::offload_optimizer and offload_parameters: the bytes between the steps.
  Bytes homed_state_bytes, homed_parameters_bytes;
  std::optional<RunLog> run_log;  // for TrainOptions::log_steps
  Nanos step_time;                // median of the training steps
  double first_loss = 0, last_loss = 0;
  std::optional<double>
      accuracy;        // on the test set, 0..1; for pixels or tokens if these have classes
  int64_t tested = 0;  // samples of the test
};

// Throws InputError if options contradict each other or are out of their range. Messages name the
// options of `reprise train`. The model and the data are checked when training begins.
void validate(const TrainOptions& options);

// Throws InputError for a wrong model or wrong data, and BudgetError if a step goes over the
// budget.
TrainReport train(const TrainOptions& options);

}  // namespace reprise::training
