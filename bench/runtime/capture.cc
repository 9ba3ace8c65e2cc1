// Measures how long a capture takes, in steps of plain training, on models of the zoo.
// docs/benchmarks.md says what it measures.
//
// Exit codes: 0; 1 when a verification failed; 2 for wrong arguments.
#include "reprise/runtime/capture.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/run_info.h"
#include "reprise/io/json.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using Clock = std::chrono::steady_clock;
using training::ModelConfig;

struct Spec {
  ModelConfig full, quick;
};

std::vector<Spec> specs() {
  return {
      {{.model = "resnet18", .input = {64, 3, 64, 64}, .classes = 100},
       {.model = "resnet18", .input = {4, 3, 32, 32}}},
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
      {{.model = "unet", .input = {8, 3, 64, 64}, .classes = 16, .width = 32},
       {.model = "unet", .input = {2, 3, 32, 32}, .width = 8}},
  };
}

// A Span is a time by two clocks, in seconds. The processors' time of this process stands still while
// other programs have them.
struct Span {
  double wall = 0, processor = 0;
};

template <class Work>
Span time_of(Work&& work) {
  const auto start = Clock::now();
  const std::clock_t processor = std::clock();
  work();
  return {std::chrono::duration<double>(Clock::now() - start).count(),
          static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Span median(const std::vector<Span>& spans) {
  std::vector<double> wall, processor;
  for (const Span& span : spans) {
    wall.push_back(span.wall);
    processor.push_back(span.processor);
  }
  return {median(std::move(wall)), median(std::move(processor))};
}

// A CaptureBench captures one model several times, with plain steps between the captures.
class CaptureBench {
 public:
  CaptureBench(const ModelConfig& config, int runs) : work_(config), runs_(runs) {
    for (const runtime::Stage& stage : work_.model.stages) {
      if (stage.module) modules_.push_back(stage.module);
    }
  }

  std::string row(int rounds) {
    const Snapshot before = work_.snapshot();
    verify(before);
    std::vector<Span> plain, captures;
    for (int round = 0; round < rounds; ++round) {
      for (int k = 0; k < 3; ++k) {
        plain.push_back(time_of([&] { step({work_.input, work_.target}); }));
        work_.restore(before);
      }
      calls_ = 0;
      captures.push_back(time_of([&] { capture(); }));
    }
    const int calls = calls_;
    const Span of_plain = median(plain), of_capture = median(captures), again = from_cache(rounds);
    return fmt::format("| {} | {} | {:.1f} | {} | {:.2f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n",
                       work_.model.config.model, ops_, 1e3 * of_plain.wall, calls, of_capture.wall,
                       of_capture.wall / of_plain.wall, of_capture.processor / of_plain.processor,
                       again.wall / of_plain.wall, again.processor / of_plain.processor);
  }

 private:
  at::Tensor step(const runtime::Tensors& in) {
    ++calls_;
    runtime::Tensors x{in[0]};
    for (const runtime::Stage& stage : work_.model.stages) x = stage.forward(x);
    at::Tensor loss = work_.model.loss(std::move(x)[0], in[1]);
    loss.backward();
    return loss;
  }

  runtime::CapturedStep capture(const std::string& cache = {}) {
    return runtime::capture([this](const runtime::Tensors& in) { return step(in); },
                            {work_.input, work_.target},
                            {.modules = modules_, .runs = runs_, .cache = cache});
  }

  // Returns the time of captures that find all costs in a cache.
  Span from_cache(int rounds) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / fmt::format("reprise_bench_{}", ::getpid());
    capture(folder.string());
    std::vector<Span> captures;
    for (int round = 0; round < rounds; ++round) {
      captures.push_back(time_of([&] {
        if (!capture(folder.string()).cache_use().found) throw std::runtime_error("cache missed");
      }));
    }
    std::filesystem::remove_all(folder);
    return median(captures);
  }

  // A captured step does what a plain one does.
  void verify(const Snapshot& before) {
    const Snapshot plain = work_.snapshot(step({work_.input, work_.target}));
    work_.restore(before);
    runtime::CapturedStep captured = capture();
    ops_ = captured.graph().ops.size();
    if (const std::string differs = difference(before, work_.snapshot()); !differs.empty()) {
      throw std::runtime_error("the capture has changed the model: " + differs);
    }
    captured.plan();
    const Snapshot replayed = work_.snapshot(captured.run({work_.input, work_.target}));
    work_.restore(before);
    if (const std::string differs = difference(plain, replayed); !differs.empty()) {
      throw std::runtime_error("the captured step is not plain training's: " + differs);
    }
  }

  Workload work_;
  int runs_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  size_t ops_ = 0;
  int calls_ = 0;  // of the step
};

int run(int argc, char** argv) {
  CLI::App app{"How long a capture takes, in steps of plain training."};
  std::vector<std::string> names;
  std::string output;
  int threads = 1, rounds = 5, runs = runtime::CaptureOptions().runs;
  bool quick = false;
  app.add_option("--models", names, "Of resnet18, gpt, lstm, unet (default: all)")->delimiter(',');
  app.add_option("--rounds", rounds, "Captures of each model")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--runs", runs, "CaptureOptions::runs")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  app.add_option("--threads", threads, "Of LibTorch")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--quick", quick, "Tiny sizes, to see that it works; its times mean nothing");
  app.add_option("-o,--output", output, "Markdown goes to this file (default: standard output)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  at::set_num_threads(threads);
  keep_freed_pages();
  const RunInfo info =
      run_info("reprise_bench_capture", argc, argv, threads,
               "LibTorch " TORCH_VERSION ", " REPRISE_BENCH_BUILD " build");
  std::string text = fmt::format(
      "# How long a capture takes\n\nA program writes this file, so do not edit it.\n"
      "[Benchmarks](../benchmarks.md#captures) says what is measured.\n"
      "This command writes the file again:\n\n{}\n- {}\n\n"
      "\"In plain steps\" is by the wall clock and, behind it, by processor time.\n\n"
      "| model | ops | plain step, ms | runs of the function | capture, s | in plain steps | "
      "| from a cache, in plain steps | |\n"
      "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
      as_code_block(info.command), measured(info));
  bool failed = false;
  for (const Spec& spec : specs()) {
    const ModelConfig& config = quick ? spec.quick : spec.full;
    if (!names.empty() && std::find(names.begin(), names.end(), config.model) == names.end()) {
      continue;
    }
    std::cerr << config.model << '\n';
    try {
      text += CaptureBench(config, runs).row(rounds);
    } catch (const std::exception& error) {
      failed = true;
      text += fmt::format("| {} | FAILED: {} | | | | | | | |\n", config.model, error.what());
      std::cerr << error.what() << '\n';
    }
    if (!output.empty()) write_file(output, text);
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
