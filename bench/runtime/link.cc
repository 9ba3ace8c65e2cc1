// Measures how much of a slow link's time the plans of a data parallel step hide. The group has one
// rank, and its link takes the time that it is told. docs/several_processes.md says more.
//
// Exit codes: 0; 1 when a verification failed; 2 for wrong arguments.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "reprise/check/explain.h"
#include "reprise/check/verify.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "slow_link.h"

namespace reprise::bench {
namespace {

namespace rt = reprise::runtime;

struct Options {
  int layers = 12, rounds = 9;
  int64_t width = 256, rows = 1024;
  std::vector<double> rates = {200, 100, 50};  // MB a second
  std::vector<std::string> budgets = {"100%", "70%", "50%"};
};

torch::nn::Sequential network(const Options& options) {
  at::manual_seed(5);
  torch::nn::Sequential model;
  for (int layer = 0; layer < options.layers; ++layer) {
    model->push_back(torch::nn::Linear(options.width, options.width));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

double ms(Nanos time) { return static_cast<double>(time.count()) / 1e6; }

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

// Plans and runs the step, and prints a row. Returns whether all was right.
bool row(const Options& options, double rate, const std::string& budget) {
  const reprise::testing::SlowGroup group("link", std::chrono::microseconds(100), rate * 1e6);
  torch::nn::Sequential model = network(options);
  const at::Tensor x = at::randn({options.rows, options.width});
  const rt::StepFunction function = [model](const rt::Tensors& in) mutable {
    const at::Tensor loss = model->forward(in[0]).square().mean();
    loss.backward();
    return rt::Tensors{loss};
  };
  function({x});
  const at::Tensor expected = model->parameters()[0].grad().clone();
  const int64_t layer = options.width * (options.width + 1) * 4;
  model->zero_grad();
  rt::CapturedStep step = rt::capture(
      function, {x}, {.modules = {model.ptr()}, .group = "link", .bucket_cap = Bytes(layer)});
  PlanResult planned;
  try {
    planned = step.plan({.budget = budget, .time_limit = Nanos(2'000'000'000)});
  } catch (const BudgetError&) {
    fmt::print("| {} | {} | no plan | | | | | | | |\n", rate, budget);
    return true;
  }
  bool right = verify(step.graph(), *planned.plan, planned.budget, step.machine()).empty();
  const ChannelUse link = explain(step.graph(), *planned.plan, step.machine()).channels.at(0);
  std::vector<double> times, waits;
  for (int round = 0; round < options.rounds + 2; ++round) {
    model->zero_grad();
    const auto begun = std::chrono::steady_clock::now();
    step.run({x});
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - begun;
    right = right && at::equal(model->parameters()[0].grad(), expected);
    right = right && step.last_step().predicted_peak == step.last_step().measured_peak;
    if (round < 2) continue;  // The arena is made.
    times.push_back(passed.count());
    waits.push_back(ms(step.last_step().waited));
  }
  const double busy = ms(link.busy), waited = ms(link.waited), seen = median(waits);
  const double compute = ms(planned.plan->time) - waited;
  const double least = std::max(0.0, ms(planned.plan->lower_bound) - compute);
  const auto hidden = [&](double wait) { return 100 * (busy - std::min(busy, wait)) / busy; };
  fmt::print(
      "| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} % | {:.0f} % | {:.1f} | {:.0f} % |\n",
      rate, budget, compute, ms(planned.plan->time), ms(planned.plan->lower_bound), busy,
      hidden(waited), hidden(least), median(times), hidden(seen));
  return right;
}

int run(int count, char** arguments) {
  Options options;
  CLI::App app("How much of a slow link's time the plans of a data parallel step hide.");
  app.add_option("--layers", options.layers, "linear layers of the network")
      ->check(CLI::Range(2, 99));
  app.add_option("--width", options.width, "of a layer")->check(CLI::Range(1, 9999));
  app.add_option("--rows", options.rows, "of the batch")->check(CLI::Range(1, 99999));
  app.add_option("--rates", options.rates, "of the link, in MB a second")->delimiter(',');
  app.add_option("--budgets", options.budgets, "shares of plain training")->delimiter(',');
  app.add_option("--rounds", options.rounds, "steps that are measured")->check(CLI::Range(1, 999));
  CLI11_PARSE(app, count, arguments);
  at::set_num_threads(1);
  rt::install_cpu_allocator();
  fmt::print(
      "| link, MB/s | budget | operations, ms | step, simulated | bound | link busy | hidden, "
      "simulated | at most, by the bound | step, measured | hidden, measured |\n"
      "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
  bool right = true;
  for (const double rate : options.rates) {
    for (const std::string& budget : options.budgets) right = row(options, rate, budget) && right;
  }
  if (!right) fmt::print("a plan, a gradient or a peak is wrong\n");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace reprise::bench

int main(int count, char** arguments) { return reprise::bench::run(count, arguments); }
