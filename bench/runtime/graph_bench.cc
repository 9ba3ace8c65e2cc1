#include "graph_bench.h"

#include <fmt/format.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/remat.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using Clock = std::chrono::steady_clock;
using training::ModelConfig;

// The search for the smallest peak may take this long. It takes longer than a plan, and in long
// graphs it has no end.
const Nanos kFloorLimit(10'000'000'000);
// A step that rounds otherwise may differ from plain training by at most kRounding of the largest
// number, or kTimesLastBit times the difference that the last bits of the parameters make. (Near
// kinks rounding decides which element gets a gradient, and the difference grows from layer to
// layer.)
constexpr double kRounding = 1e-4, kTimesLastBit = 10;

// Holds the parameters and their momentum, and the values that both had before.
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

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class ModelBench {
 public:
  ModelBench(const ModelConfig& config, const GraphBenchOptions& options)
      : options_(options), work_(config), start_(work_.snapshot()) {
    result_.config = work_.model.config;
    for (const runtime::Stage& stage : work_.model.stages) {
      if (stage.module) modules_.push_back(stage.module);
    }
    if (options.quick) measure_.min_repeats = measure_.max_repeats = 1;
    measure_.output_held = false;
    if (options.consume) descent_.emplace(work_.parameters);
  }

  double plain_time() {
    for (int k = 0; k < 2; ++k) plain();
    for (int r = 0; r < options_.rounds; ++r) times_.push_back(timed([&] { plain(); }));
    restore();
    return smallest(times_);
  }

  GraphResult run() {
    for (int k = 0; k < 2; ++k) plain();
    runtime::reset_peak(c10::kCPU);
    restore();
    const int64_t level = memory();
    {
      const at::Tensor loss = plain();
      expected_ = work_.snapshot(loss);
      if (descent_) expected_values_ = descent_->values();
    }
    if (options_.rounding) tolerance_ = std::max(kRounding, kTimesLastBit * last_bit_error());
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

  // Times pairs of a plain and a planned step.
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

  // Checks loss, gradients, buffers and random state of one step from the stored state.
  template <class Step>
  void verify(const std::string& what, Step&& step) {
    restore();
    const at::Tensor loss = step();
    const Snapshot now = work_.snapshot(loss);
    if (options_.rounding) {
      const double error = error_of(now);
      if (error < tolerance_ && expected_.random == now.random) return;
      throw std::runtime_error(
          fmt::format("{} is {:.1e} from plain training, of the largest number", what, error));
    }
    const std::string different = difference(expected_, now);
    if (descent_ && descent_->values() != expected_values_) {
      throw std::runtime_error(what + " differs from plain training: parameters or momentum");
    }
    if (!different.empty())
      throw std::runtime_error(what + " differs from plain training: " + different);
  }

  // Returns the error of the step that just ran.
  double error_of(const Snapshot& now) const {
    const std::vector<std::vector<char>> values =
        descent_ ? descent_->values() : std::vector<std::vector<char>>{};
    return std::max({largest_error(expected_.gradients, now.gradients),
                     largest_error(expected_.buffers, now.buffers),
                     largest_error(expected_values_, values)});
  }

  // Returns the error of a plain step from parameters that are next to the real ones.
  double last_bit_error() {
    restore();
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : work_.parameters) {
      before.push_back(parameter.detach().clone());
      const at::Tensor way = at::arange(parameter.numel()).remainder_(2).mul_(2).sub_(1);
      const at::Tensor towards = parameter + way.view(parameter.sizes());
      at::Tensor(parameter).copy_(at::nextafter(parameter, towards));
    }
    at::Tensor loss;
    {
      at::AutoGradMode grad_mode(true);
      loss = plain();
    }
    const double error = error_of(work_.snapshot(loss));
    for (size_t p = 0; p < before.size(); ++p) at::Tensor(work_.parameters[p]).copy_(before[p]);
    restore();
    return error;
  }

  void chain_mode() {
    auto model = runtime::remat(work_.model.stages, {work_.input},
                                {.loss = work_.loss(), .measure = measure_});
    auto step = [&] {
      at::Tensor loss = work_.model.loss(model->forward(work_.input), work_.target);
      loss.backward();
      return loss;
    };
    for (GraphRow& row : result_.rows) {
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
    options.alternatives.allow = allowed();
    return options;
  }

  // Runs each budget with the number of parts that is chosen for it.
  void in_parts() {
    const runtime::Tensors inputs{work_.input, work_.target};
    for (GraphRow& row : result_.rows) {
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
    result_.plain_time = times_.empty() ? plain_time() : smallest(times_);
  }

  void graph_mode() {
    const auto start = Clock::now();
    runtime::CapturedStep captured = runtime::capture(
        runtime::in_parts(part(), 1), {work_.input, work_.target}, capture_options());
    result_.capture = seconds_since(start);
    result_.ops = captured.graph().ops.size();
    result_.floor = smallest_peak(captured.graph());
    for (GraphRow& row : result_.rows) graph_row(captured, row);
    result_.plain_time = times_.empty() ? plain_time() : smallest(times_);
  }

  double smallest_peak(const Graph& graph) const {
    const PlanResult none =
        plan(graph, {.budget = graph.fixed,
                     .time_limit = options_.quick ? limit() : std::max(limit(), kFloorLimit),
                     .allow = allowed()});
    return share_of(none.smallest_budget.value_or(none.baseline.peak).count());
  }

  Exactness allowed() const {
    return options_.rounding ? Exactness::kRounding : Exactness::kBitwise;
  }

  Nanos limit() const { return Nanos(static_cast<int64_t>(options_.time_limit * 1e9)); }

  void graph_row(runtime::CapturedStep& captured, GraphRow& row) {
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

  // Verifies a step with a plan, then times it.
  void run_row(runtime::CapturedStep& captured, GraphRow& row) {
    auto step = [&] { return captured.run({work_.input, work_.target}); };
    // The first step is recorded, the next ones come from the arena, whose pages are new at first.
    // Both begin again for each plan that is tried for its placement.
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

  const GraphBenchOptions& options_;
  Workload work_;
  Snapshot start_, expected_;
  std::optional<Descent> descent_;
  std::vector<std::vector<char>> expected_values_;
  double tolerance_ = 0;  // used where rounding is allowed
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  runtime::MeasureOptions measure_;
  std::vector<double> times_;  // times of plain steps, ms
  GraphResult result_;
};

}  // namespace

double plain_step_time(const ModelConfig& config, const GraphBenchOptions& options) {
  return ModelBench(config, options).plain_time();
}

GraphResult bench_graph_mode(const ModelConfig& config, const GraphBenchOptions& options) {
  return ModelBench(config, options).run();
}

double smallest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace reprise::bench
