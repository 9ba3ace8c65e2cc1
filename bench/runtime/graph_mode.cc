// Step time and peak of graph mode and chain mode beside plain training, on the models of the zoo at
// several budgets, in one run. docs/benchmarks.md says what it measures.
//
// Exit codes: 0; 1 when a verification failed; 2 for wrong arguments.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/run_info.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/remat.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using Clock = std::chrono::steady_clock;
using runtime::ModelConfig;

// Of the search for the smallest peak, which takes longer than plans: there is no end to it in long graphs.
const Nanos kFloorLimit(10'000'000'000);

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

struct Options {
  int rounds = 7;
  std::vector<double> shares{1, 0.75, 0.6, 0.5, 0.4};
  double time_limit = 2;
  bool quick = false;
  bool consume = false;        // the step of an optimizer is part of both sides
  bool micro_batches = false;  // graph mode chooses a number of parts for each budget
};

// Parameters and momentum, and their values from before.
class Descent {
 public:
  explicit Descent(const std::vector<at::Tensor>& parameters)
      : optimizer_(parameters, torch::optim::SGDOptions(1e-4).momentum(0.9)), tensors_(parameters) {
    for (const at::Tensor& parameter : parameters) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(at::zeros_like(parameter));
      tensors_.push_back(state->momentum_buffer());
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    start_ = values();
  }

  torch::optim::SGD& optimizer() { return optimizer_; }
  std::vector<std::vector<char>> values() const {
    std::vector<std::vector<char>> all;
    for (const at::Tensor& tensor : tensors_) {
      const char* data = static_cast<const char*>(tensor.const_data_ptr());
      all.emplace_back(data, data + tensor.nbytes());
    }
    return all;
  }
  void restore() const {
    for (size_t k = 0; k < tensors_.size(); ++k) {
      std::memcpy(tensors_[k].mutable_data_ptr(), start_[k].data(), start_[k].size());
    }
  }

 private:
  torch::optim::SGD optimizer_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::vector<char>> start_;
};

// One mode at one budget. Ratios are to plain training's step of the same round.
struct Row {
  double share = 0;
  int64_t parts = 1;
  bool planned = false, chain_planned = false;
  double planning = 0;              // s
  double predicted = 0, gap = 0;    // graph mode: time over plain training's, time over the bound
  double peak = 0, chain_peak = 0;  // measured, of plain training's, above the level
  double arena = 0;                 // height over live bytes
  int64_t fallbacks = 0;
  std::vector<double> ratios = {}, chain_ratios = {};
};

struct Result {
  ModelConfig config;
  std::string failure;
  size_t ops = 0;
  double capture = 0;     // s
  double plain_time = 0;  // ms, smallest
  int64_t plain_peak = 0, level = 0;
  double floor = 0;  // smallest peak that graph mode found a plan for, as a share
  std::vector<Row> rows;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double smallest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

class ModelBench {
 public:
  ModelBench(const ModelConfig& config, const Options& options)
      : options_(options), work_(config), start_(work_.snapshot()) {
    result_.config = work_.model.config;
    for (const runtime::Stage& stage : work_.model.stages) {
      if (stage.module) modules_.push_back(stage.module);
    }
    if (options.quick) measure_.min_repeats = measure_.max_repeats = 1;
    measure_.output_held = false;
    if (options.consume) descent_.emplace(work_.parameters);
  }

  Result run() {
    for (int k = 0; k < 2; ++k) plain();
    runtime::reset_peak(c10::kCPU);
    restore();
    const int64_t level = memory();
    {
      const at::Tensor loss = plain();
      expected_ = work_.snapshot(loss);
      if (descent_) expected_values_ = descent_->values();
    }
    result_.level = level;
    restore();
    runtime::reset_peak(c10::kCPU);
    plain();
    result_.plain_peak = runtime::memory_count(c10::kCPU).peak;
    restore();
    for (const double share : options_.shares) result_.rows.push_back({.share = share});
    if (options_.micro_batches) {
      in_parts();
      return std::move(result_);
    }
    if (!descent_) chain_mode();
    graph_mode();
    return std::move(result_);
  }

 private:
  static int64_t memory() { return runtime::memory_count(c10::kCPU).live; }

  Bytes budget(double share) const {
    const auto above = static_cast<double>(result_.plain_peak - result_.level);
    return Bytes(result_.level + static_cast<int64_t>(above * share));
  }

  double share_of(int64_t peak) const {
    return static_cast<double>(peak - result_.level) /
           static_cast<double>(result_.plain_peak - result_.level);
  }

  at::Tensor plain() {
    at::Tensor loss = work_.plain_loss();
    loss.backward();
    if (descent_) {
      descent_->optimizer().step();
      descent_->optimizer().zero_grad();
    }
    return loss;
  }

  void restore() const {
    work_.restore(start_);
    if (descent_) descent_->restore();
  }

  template <class Step>
  double timed(Step&& step) {
    work_.drop_gradients();
    const auto start = Clock::now();
    step();
    return 1000 * seconds_since(start);
  }

  // Pairs of a plain and a planned step.
  template <class Step>
  std::vector<double> ratios(Step&& step) {
    std::vector<double> result;
    for (int r = 0; r < options_.rounds; ++r) {
      const double eager = timed([&] { plain(); });
      result.push_back(timed(step) / eager);
      times_.push_back(eager);
    }
    restore();
    return result;
  }

  // Loss, gradients, buffers, random state of one step from the stored state.
  template <class Step>
  void verify(const std::string& what, Step&& step) {
    restore();
    const at::Tensor loss = step();
    const std::string different = difference(expected_, work_.snapshot(loss));
    if (descent_ && descent_->values() != expected_values_) {
      throw std::runtime_error(what + " differs from plain training: parameters or momentum");
    }
    if (!different.empty())
      throw std::runtime_error(what + " differs from plain training: " + different);
  }

  void chain_mode() {
    auto model = runtime::remat(work_.model.stages, {work_.input},
                                {.loss = work_.loss(), .measure = measure_});
    auto step = [&] {
      at::Tensor loss = work_.model.loss(model->forward(work_.input), work_.target);
      loss.backward();
      return loss;
    };
    for (Row& row : result_.rows) {
      try {
        model->set_budget(budget(row.share));
        verify("chain mode", step);
      } catch (const BudgetError&) {
        continue;
      }
      row.chain_planned = true;
      row.chain_peak = share_of(model->last_step().measured_peak.count());
      row.chain_ratios = ratios(step);
    }
    work_.restore(start_);
  }

  runtime::PartFunction part() const {
    return [this](const runtime::Tensors& in, double share) {
      runtime::Tensors x{in[0]};
      for (const runtime::Stage& stage : work_.model.stages) x = stage.forward(x);
      at::Tensor loss = work_.model.loss(std::move(x)[0], in[1]);
      if (share != 1) loss = loss * share;
      loss.backward();
      return runtime::Tensors{loss};
    };
  }

  runtime::CaptureOptions capture_options() {
    runtime::CaptureOptions options{.modules = modules_, .measure = measure_};
    if (descent_) options.optimizer = runtime::per_parameter(descent_->optimizer());
    return options;
  }

  // Each budget with the number of parts that is chosen for it.
  void in_parts() {
    const runtime::Tensors inputs{work_.input, work_.target};
    for (Row& row : result_.rows) {
      const auto start = Clock::now();
      runtime::MicroBatches found =
          runtime::micro_batches(part(), inputs,
                                 {.capture = capture_options(),
                                  .plan = {.budget = budget(row.share), .time_limit = limit()},
                                  .infeasible_is_an_answer = true});
      row.planning = seconds_since(start);
      if (!found.chosen.result.plan) continue;
      row.parts = found.chosen.parts;
      restore();
      const at::Tensor loss = runtime::in_parts(part(), row.parts)(inputs)[0];
      expected_ = work_.snapshot(loss);
      run_row(found.step, row);
      row.predicted = static_cast<double>(found.chosen.result.plan->time.count()) /
                      static_cast<double>(found.tried.front().result.baseline.time.count());
    }
    if (!times_.empty()) result_.plain_time = smallest(times_);
  }

  void graph_mode() {
    const auto start = Clock::now();
    runtime::CapturedStep captured = runtime::capture(
        runtime::in_parts(part(), 1), {work_.input, work_.target}, capture_options());
    result_.capture = seconds_since(start);
    result_.ops = captured.graph().ops.size();
    result_.floor = smallest_peak(captured.graph());
    for (Row& row : result_.rows) graph_row(captured, row);
    result_.plain_time = smallest(times_);
  }

  double smallest_peak(const Graph& graph) const {
    const PlanResult none =
        plan(graph, {.budget = graph.fixed,
                     .time_limit = options_.quick ? limit() : std::max(limit(), kFloorLimit)});
    return share_of(none.smallest_budget.value_or(none.baseline.peak).count());
  }

  Nanos limit() const { return Nanos(static_cast<int64_t>(options_.time_limit * 1e9)); }

  void graph_row(runtime::CapturedStep& captured, Row& row) {
    const auto start = Clock::now();
    try {
      captured.plan({.budget = budget(row.share), .time_limit = limit()});
    } catch (const BudgetError&) {
      row.planning = seconds_since(start);
      return;
    }
    row.planning = seconds_since(start);
    run_row(captured, row);
  }

  // A step with a plan: verified, then timed.
  void run_row(runtime::CapturedStep& captured, Row& row) {
    auto step = [&] { return captured.run({work_.input, work_.target}); };
    // Recorded, then from the arena, whose pages are new at first; again for each plan that is tried for its
    // placement.
    for (int alike = 0, steps = 0; alike < 3; ++steps) {
      if (steps > 30) throw std::runtime_error("every step has another plan");
      const runtime::CapturedStepReport before = captured.last_step();
      verify("graph mode", step);
      const runtime::CapturedStepReport now = captured.last_step();
      const bool same = now.plans == before.plans && now.arena_height == before.arena_height;
      alike = same ? alike + 1 : 0;
    }
    const runtime::CapturedStepReport report = captured.last_step();
    if (report.predicted_peak != report.measured_peak || report.measured_peak > report.budget) {
      throw std::runtime_error(fmt::format("predicted {} bytes, measured {}, budget {}",
                                           report.predicted_peak.count(),
                                           report.measured_peak.count(), report.budget.count()));
    }
    const PlanResult& result = captured.planned();
    const auto time = static_cast<double>(result.plan->time.count());
    row.planned = true;
    row.predicted = time / static_cast<double>(result.baseline.time.count());
    row.gap = time / static_cast<double>(result.lower_bound.count()) - 1;
    row.peak = share_of(report.measured_peak.count());
    row.fallbacks = report.fallbacks;
    row.arena = report.served == 0 ? 0
                                   : static_cast<double>(report.arena_height.count()) /
                                         static_cast<double>(report.arena_live_bytes.count());
    row.ratios = ratios(step);
  }

  const Options& options_;
  Workload work_;
  Snapshot start_, expected_;
  std::optional<Descent> descent_;
  std::vector<std::vector<char>> expected_values_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  runtime::MeasureOptions measure_;
  std::vector<double> times_;  // plain, ms
  Result result_;
};

std::string shape(const ModelConfig& config) {
  std::string text;
  for (const int64_t size : config.input) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

std::string ratio_text(const std::vector<double>& ratios) {
  return fmt::format("{:.3f} ({:.3f})", median(ratios), smallest(ratios));
}

std::string table_of_parts(const Result& result) {
  std::string text = fmt::format(
      "\n### {}, {}\n\nPlain training of the whole batch: {:.1f} ms, peak {:.1f} MB above "
      "parameters, buffers "
      "and batch.\n\n"
      "| budget | parts | time (least) | peak | predicted | gap | captured and planned in | arena "
      "/ "
      "live |\n|---|---|---|---|---|---|---|---|\n",
      result.config.model, shape(result.config), result.plain_time,
      static_cast<double>(result.plain_peak - result.level) / 1e6);
  for (const Row& row : result.rows) {
    text += row.planned
                ? fmt::format("| {:.2f} | {} | {} | {:.3f} | {:.3f} | {:.2f} % | {:.1f} s | {} |\n",
                              row.share, row.parts, ratio_text(row.ratios), row.peak, row.predicted,
                              100 * row.gap, row.planning,
                              row.arena == 0 ? "heap" : fmt::format("{:.4f}", row.arena))
                : fmt::format("| {:.2f} | - | | | | | {:.1f} s | |\n", row.share, row.planning);
  }
  return text;
}

std::string table(const Result& result) {
  std::string text = fmt::format(
      "\n### {}, {}\n\n{} operations, captured and measured in {:.1f} s. Plain training: {:.1f} "
      "ms, peak {:.1f} "
      "MB above parameters, buffers and batch. Smallest peak with a plan found: {:.3f}.\n\n"
      "| budget | graph mode, time (least) | peak | predicted | gap | planned in | arena / live | "
      "chain mode, "
      "time (least) | peak |\n|---|---|---|---|---|---|---|---|---|\n",
      result.config.model, shape(result.config), result.ops, result.capture, result.plain_time,
      static_cast<double>(result.plain_peak - result.level) / 1e6, result.floor);
  for (const Row& row : result.rows) {
    text += fmt::format("| {:.2f} |", row.share);
    if (row.planned) {
      text += fmt::format(" {} | {:.3f} | {:.3f} | {:.2f} % | {:.1f} s | {} |",
                          ratio_text(row.ratios), row.peak, row.predicted, 100 * row.gap,
                          row.planning, row.arena == 0 ? "heap" : fmt::format("{:.4f}", row.arena));
    } else {
      text += fmt::format(" - | | | | {:.1f} s | |", row.planning);
    }
    text += row.chain_planned
                ? fmt::format(" {} | {:.3f} |\n", ratio_text(row.chain_ratios), row.chain_peak)
                : std::string(" - | |\n");
  }
  return text;
}

nlohmann::ordered_json to_json(const Result& result) {
  nlohmann::ordered_json json = {
      {"model", result.config.model},    {"shape", shape(result.config)},
      {"operations", result.ops},        {"plain_ms", result.plain_time},
      {"plain_peak", result.plain_peak}, {"level", result.level},
      {"floor", result.floor},           {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : result.rows) {
    json["rows"].push_back({{"share", row.share},
                            {"parts", row.parts},
                            {"peak", row.peak},
                            {"predicted", row.predicted},
                            {"gap", row.gap},
                            {"planning_s", row.planning},
                            {"arena", row.arena},
                            {"fallbacks", row.fallbacks},
                            {"ratios", row.ratios},
                            {"chain_peak", row.chain_peak},
                            {"chain_ratios", row.chain_ratios}});
  }
  return json;
}

int run(int argc, char** argv) {
  CLI::App app{"Graph mode and chain mode beside plain training, at several budgets."};
  std::vector<std::string> names;
  std::string output, json_output;
  int threads = 1;
  bool default_malloc = false;
  Options options;
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
  app.add_flag("--micro-batches", options.micro_batches,
               "Graph mode runs the step in parts along the batch, as many as are the fastest; "
               "plain training "
               "does not. Without chain mode")
      ->excludes("--consume-gradients");
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
  if (!default_malloc) keep_freed_pages();
  const RunInfo info = run_info("reprise_bench_graph_mode", argc, argv, REPRISE_BENCH_BUILD);
  std::string text = fmt::format(
      "# {}\n\nMade by\n\n    {}\n\non {}, {}, {} thread(s), LibTorch {}. What the columns mean: "
      "[benchmarks](../benchmarks.md#{}).\n",
      options.micro_batches ? "Steps in parts beside plain training"
                            : "Graph mode beside plain training and chain mode",
      info.command, info.processor, info.build, threads, TORCH_VERSION,
      options.micro_batches ? "in-parts-along-the-batch" : "graph-mode");
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  bool failed = false;
  for (const Spec& spec : specs()) {
    const ModelConfig& config = options.quick ? spec.quick : spec.full;
    if (!names.empty() && std::find(names.begin(), names.end(), config.model) == names.end())
      continue;
    std::cerr << config.model << '\n';
    try {
      const Result result = ModelBench(config, options).run();
      text += options.micro_batches ? table_of_parts(result) : table(result);
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
