// This file has `reprise models`, and the options that say which model train and profile mean.
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "output.h"
#include "reprise/model/errors.h"

namespace reprise::cli {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 1 || (next != end && *next != 'x')) break;
    shape.push_back(size);
    if (next == end) return shape;
    at = next + 1;
  }
  throw InputError("--input '" + text +
                   "' is no shape: write positive sizes with an x between them, such as "
                   "64x1x28x28, the batch first");
}

int run_models(bool json) {
  if (json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const training::ModelInfo& model : training::models()) {
      rows.push_back({{"name", model.name},
                      {"summary", model.summary},
                      {"task", model.task},
                      {"input", model.default_input}});
    }
    print(rows.dump(2) + "\n");
    return kDone;
  }
  std::string text = fmt::format("{:<14}{:<14}{:<14}{}\n", "model", "data", "input", "what it is");
  for (const training::ModelInfo& model : training::models()) {
    text += fmt::format("{:<14}{:<14}{:<14}{}\n", model.name, model.task,
                        shape_text(model.default_input), model.summary);
  }
  print(text);
  return kDone;
}

}  // namespace

void add_models(CLI::App& app, Handler& action) {
  CLI::App* command = app.add_subcommand("models", "list the models that train and profile know");
  command->footer("Example:\n  reprise models --json");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "for machines");
  command->callback([&action, json] { action = [json] { return run_models(*json); }; });
}

void add_model_options(CLI::App& command, ModelArguments& arguments) {
  command.add_option("--model", arguments.model, "see `reprise models`")
      ->required()
      ->type_name("NAME");
  command
      .add_option("--input", arguments.input,
                  "shape of a batch, such as 64x1x28x28 (default: the model's)")
      ->type_name("SHAPE");
  const auto number = [&](const char* name, int64_t& field, const char* help) {
    command.add_option(name, field, help)
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()).description(""));
  };
  number("--batch", arguments.batch, "samples in a batch, in place of the shape's first");
  number("--width", arguments.width, "of mlp, resnets, unet, gpt, lstm");
  number("--layers", arguments.layers, "of mlp, gpt, lstm");
  number("--heads", arguments.heads, "of gpt");
  number("--vocabulary", arguments.vocabulary, "of gpt");
  number("--classes", arguments.classes, "of the output");
  command.add_option("--dropout", arguments.dropout, "of gpt, mobilenet_v2")->type_name("P");
  command.add_option("--threads", arguments.threads, "of LibTorch (default: all cores)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
}

training::ModelConfig model_config(const ModelArguments& arguments) {
  if (arguments.threads > 0) at::set_num_threads(arguments.threads);
  training::ModelConfig config;
  config.model = arguments.model;
  if (!arguments.input.empty()) config.input = parse_shape(arguments.input);
  config.classes = arguments.classes;
  config.width = arguments.width;
  config.layers = arguments.layers;
  config.heads = arguments.heads;
  config.vocabulary = arguments.vocabulary;
  if (arguments.dropout && !(*arguments.dropout >= 0)) {
    throw InputError(fmt::format("--dropout is a number from 0 on and less than 1, not {}",
                                 *arguments.dropout));
  }
  if (arguments.dropout) config.dropout = *arguments.dropout;
  if (arguments.batch > 0) {
    for (const training::ModelInfo& model : training::models()) {
      if (config.input.empty() && config.model == model.name) config.input = model.default_input;
    }
    if (!config.input.empty()) config.input[0] = arguments.batch;
  }
  return config;
}

void require_mode(const std::string& mode) {
  if (mode != "chain" && mode != "graph") {
    throw InputError("--mode must be chain or graph, not '" + mode + "'");
  }
}

}  // namespace reprise::cli
