// This header has the commands of reprise-runtime, and the options that they share.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "command.h"
#include "reprise/runtime/alternatives.h"
#include "training/zoo.h"

namespace reprise::cli {

void add_train(CLI::App& app, Handler& action);
void add_profile(CLI::App& app, Handler& action);
void add_models(CLI::App& app, Handler& action);
// Throws InputError if options that only graph mode knows are given for another mode.
void validate_alternatives(const runtime::AlternativeOptions& options, const std::string& mode);
void add_alternatives(CLI::App& app, Handler& action);
void add_runtime_doctor(CLI::App& app, Handler& action);

// These arguments describe the model as the user wrote it.
struct ModelArguments {
  std::string model, input;
  int64_t batch = 0, classes = 0, width = 0, layers = 0, heads = 0, vocabulary = 0;
  std::optional<double> dropout = {};
  int threads = 0;

  bool operator==(const ModelArguments&) const = default;
};

void add_model_options(CLI::App& command, ModelArguments& arguments);

// Throws InputError for an input that is not a shape ("64x1x28x28"). The function also sets
// LibTorch's threads.
training::ModelConfig model_config(const ModelArguments& arguments);

// Adds --only and --without, which are options of graph mode.
void add_alternative_options(CLI::App& command, runtime::AlternativeOptions& options);

// Throws InputError for anything but "chain" and "graph".
void require_mode(const std::string& mode);

}  // namespace reprise::cli
