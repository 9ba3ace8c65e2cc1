#include <fmt/format.h>

#include <string>

#include "reprise/model/errors.h"
#include "reprise/plan/registry.h"
#include "training/train.h"

namespace reprise::training {

namespace {

// Online mode measures and plans nothing before it runs.
void validate_for_online(const TrainOptions& options) {
  std::string wrong;
  if (!options.planner.empty()) wrong = "--planner";
  if (options.alternatives != runtime::AlternativeOptions{}) wrong = "--allow and --alternatives";
  if (options.consume_gradients) wrong = "--consume-gradients";
  if (options.micro_batches != 1) wrong = "--micro-batches";
  if (!options.offload.to.empty()) wrong = "--offload";
  if (!wrong.empty()) {
    throw InputError(wrong +
                     " and --mode online exclude each other: online mode runs the step as it "
                     "is written");
  }
  if (options.budget.relative() && !options.check) {
    throw InputError(
        "a share of plain training's peak and --no-check exclude each other in online mode, which "
        "predicts no peak: give --budget in bytes");
  }
}

void validate_for_optimizer_state(const TrainOptions& options) {
  if (!options.offload_optimizer) return;
  if (options.mode == TrainMode::kChain || options.mode == TrainMode::kOnline) {
    throw InputError(
        "--offload-optimizer needs --mode graph: only there the optimizer is inside the step");
  }
  if (options.offload.to.empty() || options.offload.to.rfind("auto", 0) == 0) {
    throw InputError("--offload-optimizer needs a memory by name: add --offload disk:DIRECTORY");
  }
  if (!options.consume_gradients) {
    throw InputError(
        "--offload-optimizer needs --consume-gradients: the optimizer inside the step");
  }
  if (options.optimizer == OptimizerKind::kSgd && options.momentum == 0) {
    throw InputError(
        "--offload-optimizer moves the optimizer's state, and plain SGD has none: add --momentum "
        "or --optimizer adam, or leave it out");
  }
}

void validate_for_parameters(const TrainOptions& options) {
  if (!options.offload_parameters) return;
  if (options.mode == TrainMode::kChain || options.mode == TrainMode::kOnline) {
    throw InputError("--offload-parameters needs --mode graph");
  }
  if (options.offload.to.empty() || options.offload.to.rfind("auto", 0) == 0) {
    throw InputError("--offload-parameters needs a memory by name: add --offload disk:DIRECTORY");
  }
  if (!options.consume_gradients) {
    throw InputError(
        "--offload-parameters needs --consume-gradients: an optimizer outside the step would "
        "update "
        "parameters that are away");
  }
}

void validate_for_group(const TrainOptions& options) {
  if (options.group == nullptr) {
    if (!options.shard_optimizer) return;
    throw InputError(
        "--shard-optimizer is for several processes, which torchrun starts: "
        "torchrun --no-python --nproc-per-node 2 reprise train ...");
  }
  if (options.mode == TrainMode::kChain || options.mode == TrainMode::kOnline) {
    throw InputError("several processes train in graph mode: leave --mode out");
  }
  if (!options.state.empty()) {
    throw InputError(
        "--state is for one process: a file has the random state and the statistics of one rank. "
        "reprise.save_state() of Python saves those of all");
  }
  if (options.offload_optimizer || options.offload_parameters) {
    throw InputError(
        "--offload-optimizer and --offload-parameters are for one process: leave them out under "
        "torchrun");
  }
  if (options.shard_optimizer && !options.consume_gradients) {
    throw InputError("--shard-optimizer needs --consume-gradients: the optimizer inside the step");
  }
  if (options.micro_batches == 0) {
    throw InputError("ranks cannot choose their parts together: give --micro-batches a number");
  }
}

}  // namespace

void validate(const TrainOptions& options) {
  if (options.mode == TrainMode::kOnline) validate_for_online(options);
  validate_for_group(options);
  validate_for_optimizer_state(options);
  validate_for_parameters(options);
  const bool is_chain = options.mode == TrainMode::kChain;
  if (is_chain) {
    validate_for_chain(options.alternatives);
    if (options.alternatives.allow != Exactness::kBitwise) {
      throw InputError(
          "--allow needs --mode graph: the alternatives of a chain leave the same bits");
    }
  } else {
    validate(options.alternatives);
  }
  if (!options.planner.empty()) find_planner(options.planner);
  if (options.consume_gradients && is_chain) {
    throw InputError(
        "--consume-gradients needs --mode graph: a chain of stages keeps its gradients");
  }
  if (options.micro_batches < 0)
    throw InputError("--micro-batches must be a number from 1, or auto");
  if (options.micro_batches != 1 && is_chain) {
    throw InputError(
        "--micro-batches needs --mode graph: around a chain of stages, accumulate gradients in a "
        "loop");
  }
  if (!options.parts_from.empty() && options.micro_batches == 1) {
    throw InputError("--parts-from needs --micro-batches auto, or a number of them");
  }
  if (options.save_every < 0) throw InputError("--save-every must not be negative");
  if (options.save_every > 0 && options.state.empty()) {
    throw InputError("--save-every needs --state, the folder of the saved state");
  }
  const auto require = [](bool holds, const char* option, const char* what, auto value) {
    if (!holds) throw InputError(fmt::format("{} is {}, not {}", option, what, value));
  };
  require(options.steps >= 0, "--steps", "a number from 1 on", options.steps);
  require(options.epochs >= 1, "--epochs", "a number from 1 on", options.epochs);
  require(options.test_samples >= 0, "--test", "a number from 0 on", options.test_samples);
  require(options.learning_rate >= 0, "--learning-rate", "a number above 0", options.learning_rate);
  require(options.momentum >= 0 && options.momentum < 1, "--momentum",
          "a number from 0 on and less than 1", options.momentum);
}

}  // namespace reprise::training
