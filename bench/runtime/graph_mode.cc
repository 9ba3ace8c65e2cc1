// Measures step time and peak of graph mode and chain mode beside plain training, on the models of
// the zoo at several budgets, in one run. docs/benchmarks.md says what it measures.
//
// Exit codes: 0; 1 when a verification failed; 2 for wrong arguments.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/run_info.h"
#include "graph_bench.h"
#include "graph_tables.h"
#include "reprise/io/json.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using training::ModelConfig;

struct Spec {
  ModelConfig full, quick;
};

std::vector<Spec> specs() {
  return {
      {{.model = "mlp", .input = {2048, 1, 28, 28}, .width = 512, .layers = 12},
       {.model = "mlp", .input = {64, 1, 8, 8}, .width = 64, .layers = 6}},
      {{.model = "resnet18", .input = {64, 3, 64, 64}, .classes = 100},
       {.model = "resnet18", .input = {4, 3, 32, 32}}},
      {{.model = "resnet50", .input = {32, 3, 64, 64}, .classes = 100},
       {.model = "resnet50", .input = {2, 3, 32, 32}}},
      {{.model = "resnet101", .input = {32, 3, 64, 64}, .classes = 100},
       {.model = "resnet101", .input = {2, 3, 32, 32}}},
      {{.model = "vgg16_bn", .input = {16, 3, 64, 64}, .classes = 100},
       {.model = "vgg16_bn", .input = {2, 3, 32, 32}}},
      {{.model = "densenet121", .input = {16, 3, 64, 64}},
       {.model = "densenet121", .input = {2, 3, 32, 32}}},
      {{.model = "mobilenet_v2", .input = {32, 3, 64, 64}},
       {.model = "mobilenet_v2", .input = {2, 3, 32, 32}}},
      {{.model = "unet", .input = {8, 3, 64, 64}, .classes = 16, .width = 32},
       {.model = "unet", .input = {2, 3, 32, 32}, .width = 8}},
      {{.model = "gpt",
        .input = {4, 256},
        .width = 256,
        .layers = 12,
        .heads = 4,
        .vocabulary = 8192,
        .dropout = 0},
       {.model = "gpt", .input = {2, 32}, .width = 64, .layers = 3, .heads = 4, .vocabulary = 128}},
      {{.model = "lstm", .input = {128, 48, 32}, .width = 256},
       {.model = "lstm", .input = {4, 8, 16}, .width = 32}},
  };
}

int run(int argc, char** argv) {
  CLI::App app{"Graph mode and chain mode beside plain training, at several budgets."};
  std::vector<std::string> names;
  std::string output, json_output;
  int threads = 1;
  bool default_malloc = false;
  GraphBenchOptions options;
  app.add_option("--models", names, "Of the zoo, separated by commas (default: all)")
      ->delimiter(',');
  app.add_option("--budgets", options.shares, "Shares of plain training's peak above the level")
      ->delimiter(',');
  app.add_option("--rounds", options.rounds, "Pairs of steps a row")->capture_default_str();
  app.add_option("--time-limit", options.time_limit, "Of each plan, seconds")
      ->capture_default_str();
  app.add_option("--threads", threads, "Of LibTorch")->capture_default_str();
  app.add_flag("--default-malloc", default_malloc,
               "Plain training gives pages back to the system, as it does without this program");
  app.add_flag(
      "--consume-gradients", options.consume,
      "Descent with momentum is part of every step; graph mode updates each parameter when its "
      "gradient is complete. Without chain mode");
  app.add_flag("--allow-rounding", options.rounding,
               "Graph mode may use alternatives that leave other bits; numbers are compared up to "
               "rounding");
  app.add_flag("--micro-batches", options.micro_batches,
               "Graph mode runs the step in parts along the batch, as many as are the fastest; "
               "plain training "
               "does not. Without chain mode")
      ->excludes("--consume-gradients")
      ->excludes("--allow-rounding");
  app.add_flag("--quick", options.quick,
               "Tiny sizes, to see that it works; its times mean nothing");
  app.add_option("-o,--output", output, "Markdown goes to this file (default: standard output)");
  app.add_option("--json", json_output,
                 "Everything, every sample included, goes to this file, too");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  at::set_num_threads(threads);
  std::vector<Spec> wanted = specs();
  std::erase_if(wanted, [&](const Spec& spec) {
    return !names.empty() && std::find(names.begin(), names.end(), spec.full.model) == names.end();
  });
  // The default malloc comes first, for all models: once its settings are changed, they stay
  // changed.
  std::vector<double> default_times;
  for (const Spec& spec : wanted) {
    default_times.push_back(plain_step_time(options.quick ? spec.quick : spec.full, options));
  }
  if (!default_malloc) keep_freed_pages();
  const RunInfo info =
      run_info("reprise_bench_graph_mode", argc, argv, threads,
               "LibTorch " TORCH_VERSION ", " REPRISE_BENCH_BUILD " build");
  std::string text = fmt::format(
      "# {}\n\nA program writes this file, so do not edit it.\n"
      "[Benchmarks](../benchmarks.md#{}) says what is measured, how, and how to read it.\n"
      "This command writes the file again:\n\n{}\n- {}\n",
      options.micro_batches ? "Steps in parts beside plain training"
                            : "Graph mode beside plain training and chain mode",
      options.micro_batches ? "in-parts-along-the-batch" : "how-graph-mode-is-measured",
      as_code_block(info.command), measured(info));
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  bool failed = false;
  for (size_t k = 0; k < wanted.size(); ++k) {
    const ModelConfig& config = options.quick ? wanted[k].quick : wanted[k].full;
    std::cerr << config.model << '\n';
    try {
      GraphResult result = bench_graph_mode(config, options);
      result.default_plain_time = default_times[k];
      text += options.micro_batches ? markdown_of_parts(result) : markdown(result);
      json.push_back(to_json(result));
    } catch (const std::exception& error) {
      failed = true;
      text += fmt::format("\n### {}\n\nFAILED: {}\n", config.model, error.what());
      std::cerr << error.what() << '\n';
    }
    if (!output.empty()) write_file(output, text);
    if (!json_output.empty()) write_file(json_output, json.dump(1) + "\n");
  }
  if (output.empty()) std::cout << text;
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) {
  try {
    return reprise::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
