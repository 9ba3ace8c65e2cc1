#include "training/saved_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>
#include <system_error>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::training {

using runtime::Progress;
using runtime::StateParts;

namespace {

namespace fs = std::filesystem;

constexpr const char* kMicroBatches = "micro-batches";

// Returns the options that decide about the bits of the run, by the names that they have in the
// command. The budget, the mode and the planner are not among them, because they change no bit.
std::map<std::string, std::string> identity(const TrainOptions& options) {
  const ModelConfig& model = options.model;
  std::map<std::string, std::string> all = {
      {"model", model.model},
      {"input", fmt::format("{}", fmt::join(model.input, "x"))},
      {"classes", std::to_string(model.classes)},
      {"width", std::to_string(model.width)},
      {"layers", std::to_string(model.layers)},
      {"heads", std::to_string(model.heads)},
      {"vocabulary", std::to_string(model.vocabulary)},
      {"dropout", fmt::format("{}", model.dropout)},
      {"data", options.data},
      {"optimizer", options.optimizer == OptimizerKind::kSgd ? "sgd" : "adam"},
      {"learning-rate", fmt::format("{}", options.learning_rate)},
      {"momentum", fmt::format("{}", options.momentum)},
      {"schedule", options.schedule == LearningRateSchedule::kLinear ? "linear" : "constant"},
      {"parts-from", options.parts_from},
      {"allow", to_string(options.alternatives.allow)},
      {"seed", std::to_string(options.seed)},
      {kMicroBatches, std::to_string(options.micro_batches)},
  };
  if (options.schedule == LearningRateSchedule::kLinear) {
    all["steps"] = std::to_string(options.steps);
    all["epochs"] = std::to_string(options.epochs);
  }
  return all;
}

}  // namespace

SavedRun::SavedRun(TrainOptions& options)
    : options_(options), file_(fs::path(options.state) / "state.safetensors") {
  std::error_code error;
  fs::create_directories(options.state, error);
  if (error || !fs::is_directory(options.state)) {
    throw InputError("--state: the folder cannot be made: " +
                         (error ? error.message() : std::string("it is a file")),
                     {.file = options.state, .pointer = {}, .line = 0});
  }
  if (!fs::exists(file_)) return;
  found_ = runtime::read_progress(file_);
  std::map<std::string, std::string> theirs = found_->notes, ours = identity(options);
  if (options.micro_batches == 0) ours[kMicroBatches] = theirs[kMicroBatches];  // auto
  std::vector<std::string> different;
  for (const auto& [name, text] : ours) {
    if (theirs[name] != text) {
      different.push_back(fmt::format("--{} is {}, and was {}", name,
                                      text.empty() ? "not given" : text,
                                      theirs[name].empty() ? "not given" : theirs[name]));
    }
  }
  if (!different.empty()) {
    throw InputError(fmt::format("is the state of another run: {}. Give the same options, or "
                                 "another folder",
                                 fmt::join(different, "; ")),
                     {.file = file_.string(), .pointer = {}, .line = 0});
  }
  const std::string& parts = theirs[kMicroBatches];
  std::from_chars(parts.data(), parts.data() + parts.size(), options.micro_batches);
}

void SavedRun::load(const StateParts& parts) const { runtime::load_state(file_, parts); }

void SavedRun::save(const StateParts& parts, int64_t step, int64_t micro_batches,
                    const Plan* plan) const {
  Progress progress{.step = step, .position = step, .notes = identity(options_)};
  if (plan != nullptr) progress.plan = runtime::plan_sha256(*plan);
  progress.notes[kMicroBatches] = std::to_string(micro_batches);
  runtime::save_state(file_, parts, progress);
}

}  // namespace reprise::training
