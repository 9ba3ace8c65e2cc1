// Measures step time and peak of every model of the zoo, in one run: plain training, periodic
// recomputation as PyTorch's users have it, and Reprise at many budgets. docs/benchmarks.md says
// what it measures.
//
// Exit codes: 0; 1 when a verification failed (that model shows no figures); 2 for wrong arguments.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "bench_model.h"
#include "common/run_info.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "tables.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using training::ModelConfig;

struct Spec {
  ModelConfig full;                        // a step takes a few tenths of a second on two cores
  ModelConfig quick;                       // steps take milliseconds
  std::vector<ModelConfig> executor = {};  // further sizes, for the cost of the executor
};

std::vector<Spec> specs() {
  return {
      {{.model = "mlp", .input = {2048, 1, 28, 28}, .width = 512, .layers = 12},
       {.model = "mlp", .input = {64, 1, 8, 8}, .width = 64, .layers = 6}},
      {{.model = "resnet18", .input = {64, 3, 64, 64}},
       {.model = "resnet18", .input = {4, 3, 32, 32}}},
      {{.model = "resnet34", .input = {32, 3, 64, 64}},
       {.model = "resnet34", .input = {2, 3, 32, 32}}},
      {{.model = "resnet50", .input = {32, 3, 64, 64}},
       {.model = "resnet50", .input = {2, 3, 32, 32}},
       {{.model = "resnet50", .input = {8, 3, 64, 64}}}},
      {{.model = "resnet101", .input = {16, 3, 64, 64}},
       {.model = "resnet101", .input = {2, 3, 32, 32}}},
      {{.model = "vgg16_bn", .input = {16, 3, 64, 64}},
       {.model = "vgg16_bn", .input = {2, 3, 32, 32}}},
      {{.model = "densenet121", .input = {16, 3, 64, 64}},
       {.model = "densenet121", .input = {2, 3, 32, 32}}},
      {{.model = "mobilenet_v2", .input = {32, 3, 64, 64}},
       {.model = "mobilenet_v2", .input = {2, 3, 32, 32}}},
      {{.model = "unet", .input = {8, 3, 64, 64}, .width = 32},
       {.model = "unet", .input = {2, 3, 32, 32}, .width = 8}},
      {{.model = "gpt", .input = {4, 256}, .width = 256, .layers = 12, .heads = 4},
       {.model = "gpt", .input = {2, 32}, .width = 64, .layers = 3, .heads = 4, .vocabulary = 128}},
      {{.model = "lstm", .input = {128, 48, 32}, .width = 256},
       {.model = "lstm", .input = {4, 8, 16}, .width = 32}},
  };
}

int run(int argc, char** argv) {
  CLI::App app{"Step time and peak: plain training, periodic recomputation, Reprise."};
  std::vector<std::string> names;
  std::string output, json_output;
  int threads = 0;
  bool quick = false, default_malloc = false;
  BenchOptions options;
  app.add_option("--models", names, "Of the zoo, separated by commas (default: all)")
      ->delimiter(',');
  app.add_option("--rounds", options.rounds, "Rounds over all settings")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  auto* pairs =
      app.add_option("--pairs", options.pairs,
                     "Pairs where two settings are timed side by side (default: 3 a round)")
          ->check(CLI::Range(1, 10000));
  app.add_option("--threads", threads, "Of LibTorch (default: its own)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--quick", quick, "Tiny sizes, to see that it works; its times mean nothing");
  app.add_flag("--all-segments", options.all_segments,
               "Every segment count (default: a dozen between 1 and the number of stages)");
  app.add_flag(
      "--default-malloc", default_malloc,
      "glibc's malloc as it is: freed pages go back to the system and are faulted in again");
  app.add_option("-o,--output", output, "Markdown goes to this file (default: standard output)");
  app.add_option("--json", json_output,
                 "Everything, every sample included, goes to this file, too");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (pairs->empty()) options.pairs = 3 * options.rounds;
  options.quick = quick;
  if (quick) options.sample_seconds = 0;
  if (threads > 0) at::set_num_threads(threads);
  if (!default_malloc) keep_freed_pages();

  std::vector<Spec> chosen = specs();
  if (!names.empty()) {
    std::vector<Spec> all;
    std::swap(all, chosen);
    for (const std::string& name : names) {
      const auto spec =
          std::find_if(all.begin(), all.end(), [&](const Spec& s) { return s.full.model == name; });
      if (spec == all.end()) {
        std::string known;
        for (const Spec& s : all) known += fmt::format(" {}", s.full.model);
        throw InputError(fmt::format("unknown model \"{}\"; there are{}", name, known));
      }
      chosen.push_back(*spec);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  options.progress = [begin](const std::string& what) {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "[{:7.1f} s] {}\n", now.count(), what);
  };

  const StepRunInfo info{
      .run = run_info("reprise_bench_chain_mode", argc, argv, at::get_num_threads(),
                      "LibTorch " TORCH_VERSION ", " REPRISE_BENCH_BUILD " build"),
      .options = options};

  std::vector<ModelResult> results;
  bool failed = false;
  auto write = [&] {
    if (!output.empty()) write_file(output, markdown(info, results));
    if (!json_output.empty()) write_file(json_output, json(info, results));
  };
  for (const Spec& spec : chosen) {
    try {
      ModelResult result = bench_model(quick ? spec.quick : spec.full, options);
      if (!quick) {
        for (const ModelConfig& config : spec.executor) {
          result.executor.push_back(executor_cost(config, options));
        }
      }
      results.push_back(std::move(result));
    } catch (const std::exception& e) {
      fmt::print(stderr, "{}: {}\n", spec.full.model, e.what());
      results.push_back({.config = quick ? spec.quick : spec.full, .failure = e.what()});
      failed = true;
    }
    write();  // after every model, so that an interrupted run keeps what it has
  }
  if (output.empty()) fmt::print("{}", markdown(info, results));
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) {
  try {
    return reprise::bench::run(argc, argv);
  } catch (const reprise::InputError& e) {
    std::cerr << e.what() << "\n";
    return 2;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
