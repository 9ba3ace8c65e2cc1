// Measures what lockstep costs: the time of a captured step whose function runs beside it, the time
// of the same step without, and from both the cost of the sparse lockstep over 1,000 steps. The bits of
// the two steps are compared before anything is timed.
//
// Exit codes: 0; 1 when the steps differ in a bit; 2 for wrong arguments.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "common/run_info.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using runtime::CapturedStep;
using runtime::Lockstep;
using runtime::Tensors;
using training::ModelConfig;

// The runs of 1,000 after a capture that the sparse lockstep compares: 1, 2, 10, 100 and 1,000.
constexpr double kCompared = 5, kSteps = 1000;

struct Row {
  std::string name;
  ModelConfig config;
};

std::vector<Row> rows() {
  return {
      {"gpt, 3 layers of width 64",
       {.model = "gpt", .input = {2, 32}, .width = 64, .layers = 3, .heads = 4, .vocabulary = 128}},
      {"gpt, 4 layers of width 128",
       {.model = "gpt", .input = {4, 128}, .width = 128, .layers = 4, .heads = 4}}};
}

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

CapturedStep captured(const Workload& work, Lockstep lockstep) {
  auto step = [&work](const Tensors&) {
    const at::Tensor loss = work.plain_loss();
    loss.backward();
    return Tensors{loss};
  };
  CapturedStep result(step, {work.input, work.target}, {.lockstep = lockstep});
  result.plan();
  return result;
}

// Prints a row of the table. Throws Error if the steps differ.
void measure(const Row& row, int rounds) {
  Workload work(row.config);
  CapturedStep alone = captured(work, Lockstep::kNever), beside = captured(work, Lockstep::kAlways);
  const Tensors inputs{work.input, work.target};
  const Snapshot start = work.snapshot();
  std::vector<Snapshot> found;
  for (CapturedStep* step : {&alone, &beside}) {
    work.restore(start);
    for (int warm = 0; warm < 3; ++warm) {  // The arena is there from the second run on.
      work.drop_gradients();
      step->run(inputs);
    }
    work.restore(start);
    found.push_back(work.snapshot(step->run(inputs)));
  }
  if (!(found[0] == found[1])) throw Error("the steps differ: " + difference(found[0], found[1]));
  std::vector<double> without, with, plain;
  for (int round = 0; round < rounds; ++round) {
    work.drop_gradients();
    without.push_back(milliseconds([&] { alone.run(inputs); }));
    work.drop_gradients();
    with.push_back(milliseconds([&] { beside.run(inputs); }));
    work.drop_gradients();
    plain.push_back(milliseconds([&] { work.plain_loss().backward(); }));
  }
  const double step = median(without), comparison = median(with) - step;
  fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.3f} |\n", row.name, median(plain), step,
             comparison, comparison / step, 100 * kCompared * comparison / (kSteps * step));
}

int run(int argc, char** argv) {
  CLI::App app{"The cost of lockstep."};
  int rounds = 100;
  app.add_option("--rounds", rounds, "Runs of each step")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  at::set_num_threads(1);
  keep_freed_pages();
  const RunInfo info =
      run_info("reprise_bench_lockstep", argc, argv, 1,
               "LibTorch " TORCH_VERSION ", " REPRISE_BENCH_BUILD " build");
  fmt::print("{}\n{}\n", as_code_block(info.command), measured(info));
  fmt::print(
      "| model | plain step, ms | captured step, ms | comparison, ms | comparison / step |"
      " sparse over 1,000 steps, % |\n|---|--:|--:|--:|--:|--:|\n");
  for (const Row& row : rows()) {
    try {
      measure(row, rounds);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", row.name, error.what());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) { return reprise::bench::run(argc, argv); }
