#include "bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "checkpoint_sequential.h"
#include "comparison.h"
#include "reprise/check/explain.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/remat.h"
#include "workload.h"

namespace reprise::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Gradients of a model in float32 may be rounded differently when they are recomputed. A larger
// difference is a fault.
constexpr double kLargestGradientError = 1e-3;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int64_t live() { return runtime::memory_count(c10::kCPU).live; }

runtime::RematOptions remat_options(const Workload& work, const BenchOptions& options) {
  runtime::RematOptions result;
  result.loss = work.loss();
  result.measure.name = work.model.config.model;
  result.measure.output_held = false;  // loss = f(forward(x)), as the plain step has it
  if (options.quick) {
    result.measure.min_repeats = result.measure.max_repeats = 1;
    result.measure.min_time = Nanos(0);
  }
  return result;
}

// Returns segment counts from 1 to the number of stages: all of them, or a dozen that are denser
// where there are few segments.
std::vector<int64_t> segment_counts(int64_t stages, bool all) {
  constexpr int kCounts = 12;
  std::set<int64_t> counts;
  for (int i = 0; i < kCounts; ++i) {
    const double share = static_cast<double>(i) / (kCounts - 1);
    counts.insert(std::llround(std::pow(static_cast<double>(stages), share)));
  }
  for (int64_t k = 1; k <= stages && (all || counts.size() < kCounts); ++k) counts.insert(k);
  return {counts.begin(), counts.end()};
}

using MakeLoss = std::function<at::Tensor()>;

// Runs one step from the state as it is. The time ends when the step's graph is freed.
double timed_step(const Workload& work, const MakeLoss& loss) {
  work.drop_gradients();
  const auto start = Clock::now();
  loss().backward();
  return milliseconds_since(start);
}

// Returns the mean time of some steps. It leaves no gradients, because a plan counts what is live
// when it is made.
double sample(const Workload& work, const MakeLoss& loss, int64_t steps) {
  double sum = 0;
  for (int64_t i = 0; i < steps; ++i) sum += timed_step(work, loss);
  work.drop_gradients();
  return sum / static_cast<double>(steps);
}

// Puts `initial` back and runs one step from it. Returns the state behind the step, and writes the
// peak into `setting`.
Snapshot observed_step(const Workload& work, const Snapshot& initial, const MakeLoss& make_loss,
                       Setting& setting) {
  work.restore(initial);
  const int64_t before = live();
  runtime::reset_peak(c10::kCPU);
  Snapshot after;
  {
    const at::Tensor loss = make_loss();
    loss.backward();
    setting.peak = runtime::memory_count(c10::kCPU).peak;
    after = work.snapshot(loss);
  }
  setting.above = setting.peak - before;
  work.restore(initial);
  if (live() != before) {
    throw std::runtime_error(fmt::format("a step left {} bytes of memory behind", live() - before));
  }
  return after;
}

// Compares a Reprise step at the present budget with plain training's.
void verify_reprise(const Workload& work, const Snapshot& initial, const Snapshot& plain,
                    runtime::Remat& remat, Setting& setting) {
  const MakeLoss loss = [&] { return work.model.loss(remat.forward(work.input), work.target); };
  const Snapshot after = observed_step(work, initial, loss, setting);
  if (const std::string differs = difference(plain, after); !differs.empty()) {
    throw std::runtime_error(
        fmt::format("at a budget of {} bytes Reprise's step is not plain training's: {}",
                    setting.budget, differs));
  }
  const runtime::StepReport report = remat.last_step();
  if (report.measured_peak > report.predicted_peak ||
      report.measured_peak.count() > setting.budget ||
      report.measured_peak.count() != setting.peak) {
    throw std::runtime_error(fmt::format(
        "at a budget of {} bytes Reprise predicts a peak of {}, reports {}, and {} is measured",
        setting.budget, report.predicted_peak.count(), report.measured_peak.count(), setting.peak));
  }
}

// Holds the samples of both settings, which were taken one after the other in alternating order.
struct Pairs {
  std::vector<double> first, second;  // ms
};

Pairs time_pairs(const Workload& work, const MakeLoss& first, const MakeLoss& second, int64_t steps,
                 const BenchOptions& options) {
  Pairs times;
  for (int pair = 0; pair < options.pairs; ++pair) {
    for (int half = 0; half < 2; ++half) {
      if ((pair + half) % 2 == 0) {
        times.first.push_back(sample(work, first, steps));
      } else {
        times.second.push_back(sample(work, second, steps));
      }
    }
  }
  return times;
}

ExecutorCost cost_of_executor(const Workload& work, runtime::Remat& remat, int64_t steps,
                              const BenchOptions& options) {
  remat.set_budget({});
  remat.plan_for({work.input});
  const Pairs times = time_pairs(
      work, [&] { return work.plain_loss(); },
      [&] { return work.model.loss(remat.forward(work.input), work.target); }, steps, options);
  return {.config = work.model.config,
          .plain_median = median(times.first),
          .plain_min = quantile(times.first, 0),
          .reprise_median = median(times.second),
          .reprise_min = quantile(times.second, 0),
          .ratios = ratios(times.second, times.first)};
}

int64_t steps_per_sample(const Workload& work, const BenchOptions& options) {
  const double time = timed_step(work, [&] { return work.plain_loss(); });
  work.drop_gradients();
  return std::clamp<int64_t>(std::llround(1e3 * options.sample_seconds / time), 1, 100);
}

// Returns the name of the stage that the op belongs to, or nothing for the loss.
std::string stage_of(const Chain& chain, const std::string& op) {
  const auto stage = ChainIndex{chain.stages.size()}.stage_of(find_op(lower(chain), op));
  return stage ? chain.stages[*stage].name : std::string();
}

int64_t forward_runs(const Chain& chain, const std::vector<Action>& actions) {
  const Graph graph = lower(chain);
  return std::ranges::count_if(bind(graph, actions), [&](const BoundAction& action) {
    return action.kind == ActionKind::kRun && graph.ops[action.target].phase == Phase::kForward;
  });
}

class ModelBench {
 public:
  ModelBench(const training::ModelConfig& config, const BenchOptions& options)
      : options_(options),
        work_(config),
        initial_(work_.snapshot()),
        checkpoint_(work_.model.stages, {work_.input}) {
    work_.restore(initial_);
    result_.config = work_.model.config;
    result_.stages = static_cast<int64_t>(work_.model.stages.size());
    result_.level = work_.level;
  }

  ModelResult run() {
    observe_plain();
    observe_periodic();
    progress("measuring the stages");
    remat_.emplace(work_.model.stages, remat_options(work_, options_));
    remat_->plan_for({work_.input});
    chain_ = remat_->chain();
    result_.held = live() - result_.level;
    plan_all();
    time_all();
    time_pairs_of_the_rest();
    progress("executor cost");
    result_.executor.push_back(cost_of_executor(work_, *remat_, result_.steps, options_));
    return std::move(result_);
  }

 private:
  void progress(const std::string& what) const {
    if (options_.progress) options_.progress(fmt::format("{}: {}", work_.model.config.model, what));
  }

  MakeLoss loss_of(const Setting& setting) {
    if (setting.kind == Kind::kPlain) {
      return [this] { return work_.plain_loss(); };
    }
    if (setting.kind == Kind::kPeriodic) {
      return [this, k = setting.segments] {
        return work_.model.loss(checkpoint_.forward({work_.input}, k)[0], work_.target);
      };
    }
    return [this] { return work_.model.loss(remat_->forward(work_.input), work_.target); };
  }

  void observe_plain() {
    progress("plain training");
    const MakeLoss loss = [this] { return work_.plain_loss(); };
    Setting warm_up, setting;
    observed_step(work_, initial_, loss, warm_up);
    plain_ = observed_step(work_, initial_, loss, setting);
    Setting again;
    if (const std::string differs = difference(plain_, observed_step(work_, initial_, loss, again));
        !differs.empty()) {
      throw std::runtime_error(
          fmt::format("plain training itself is not reproducible: {}", differs));
    }
    result_.settings.push_back(setting);
    result_.steps = steps_per_sample(work_, options_);
  }

  void observe_periodic() {
    for (const int64_t k : segment_counts(result_.stages, options_.all_segments)) {
      progress(fmt::format("periodic, k = {}", k));
      Setting setting{.kind = Kind::kPeriodic, .segments = k};
      const Snapshot after = observed_step(work_, initial_, loss_of(setting), setting);
      setting.gradient_error = largest_error(plain_.gradients, after.gradients);
      setting.bitwise = plain_.gradients == after.gradients;
      if (!(setting.gradient_error <= kLargestGradientError)) {
        throw std::runtime_error(fmt::format("periodic with k = {}: gradients are off by {:.2g}", k,
                                             setting.gradient_error));
      }
      result_.settings.push_back(setting);
    }
  }

  // Adds the plan for this budget to the settings, unless it is there.
  void plan(Request request) {
    const auto start = Clock::now();
    const PlanResult answer = reprise::plan(
        chain_, {.budget = Bytes(request.budget), .schedule_class = runtime::kScheduleClass});
    result_.planning = std::max(result_.planning, 1e-3 * milliseconds_since(start));
    if (!answer.plan) {
      if (answer.smallest_budget && !result_.floor)
        find_floor(*answer.smallest_budget, answer.blocking_op);
      result_.requests.push_back(request);
      return;
    }
    const auto same = std::find(plans_.begin(), plans_.end(), answer.plan->actions);
    const size_t index = static_cast<size_t>(same - plans_.begin());
    if (same == plans_.end()) {
      plans_.push_back(answer.plan->actions);
      result_.settings.push_back(
          {.kind = Kind::kReprise,
           .budget = request.budget,
           .predicted_overhead = static_cast<double>(answer.plan->time.count()) /
                                     static_cast<double>(answer.baseline.time.count()) -
                                 1,
           .recomputed = forward_runs(chain_, answer.plan->actions) - result_.stages});
    }
    request.setting = first_plan_ + index;
    Setting& setting = result_.settings[*request.setting];
    setting.budget = std::min(setting.budget, request.budget);
    result_.requests.push_back(request);
  }

  void find_floor(Bytes smallest, const std::string& op) {
    const PlanResult answer =
        reprise::plan(chain_, {.budget = smallest, .schedule_class = runtime::kScheduleClass});
    if (!answer.plan) return;
    Floor floor{.budget = smallest.count(), .op = op, .stage = stage_of(chain_, op)};
    for (const Holder& holder : explain(lower(chain_), *answer.plan).holders) {
      if (floor.holders.size() < 4) floor.holders.emplace_back(holder.id, holder.bytes.count());
    }
    result_.floor = floor;
  }

  void use(const Setting& setting) {
    if (setting.kind != Kind::kReprise || budget_ == setting.budget) return;
    remat_->set_budget(Bytes(setting.budget));
    remat_->plan_for({work_.input});
    budget_ = setting.budget;
  }

  void plan_all() {
    first_plan_ = result_.settings.size();
    const int64_t plain_peak = result_.settings[0].peak;
    for (int tenths = 10; tenths >= 3; --tenths) {
      progress(fmt::format("planning for {} % of plain's peak", 10 * tenths));
      plan({.share = tenths / 10.0, .budget = plain_peak * tenths / 10});
    }
    std::set<int64_t> seen;
    for (size_t s = 1; s < first_plan_; ++s) {
      if (!seen.insert(result_.settings[s].peak).second) continue;
      progress(fmt::format("planning for the peak of k = {}", result_.settings[s].segments));
      plan({.periodic = s, .budget = result_.settings[s].peak});
    }
    for (size_t s = first_plan_; s < result_.settings.size(); ++s) {
      progress(fmt::format("verifying plan {} of {}", s - first_plan_ + 1, plans_.size()));
      use(result_.settings[s]);
      verify_reprise(work_, initial_, plain_, *remat_, result_.settings[s]);
    }
    // The cost of the executor is measured without a limit.
    remat_->set_budget({});
    remat_->plan_for({work_.input});
    budget_ = -1;
    Setting unlimited{.kind = Kind::kReprise, .budget = std::numeric_limits<int64_t>::max()};
    verify_reprise(work_, initial_, plain_, *remat_, unlimited);
  }

  // Plain training comes first. Each periodic setting stands beside the plan for its peak.
  std::vector<size_t> order() const {
    std::vector<size_t> result{0};
    std::set<size_t> placed{0};
    auto place = [&](size_t s) {
      if (placed.insert(s).second) result.push_back(s);
    };
    for (size_t s = 1; s < first_plan_; ++s) {
      place(s);
      for (const Request& request : result_.requests) {
        if (request.periodic == s && request.setting) place(*request.setting);
      }
    }
    for (size_t s = first_plan_; s < result_.settings.size(); ++s) place(s);
    return result;
  }

  void time_all() {
    std::vector<size_t> settings = order();
    for (int round = 0; round < options_.rounds; ++round) {
      progress(fmt::format("round {} of {}, {} settings of {} steps", round + 1, options_.rounds,
                           settings.size(), result_.steps));
      for (const size_t s : settings) {
        Setting& setting = result_.settings[s];
        use(setting);
        setting.times.push_back(sample(work_, loss_of(setting), result_.steps));
      }
      std::reverse(settings.begin(), settings.end());
    }
  }

  // Times pairs where the rounds do not say that Reprise is faster. A few rounds cannot tell one
  // per cent from nothing, and the best of several periodic settings was lucky in them.
  void time_pairs_of_the_rest() {
    for (const Comparison& c : comparisons(result_)) {
      if (c.ratio.empty() || std::string_view(verdict(c.ratio)) == "faster") continue;
      const Setting& periodic = result_.settings[c.best];
      const Setting& reprise = result_.settings[*c.request->setting];
      if (std::any_of(result_.pairs.begin(), result_.pairs.end(), [&](const PairedRun& run) {
            return run.periodic == c.best && run.reprise == *c.request->setting;
          })) {
        continue;  // at another peak
      }
      progress(fmt::format("pairs at the peak of k = {}", result_.settings[c.periodic].segments));
      use(reprise);
      const Pairs times =
          time_pairs(work_, loss_of(periodic), loss_of(reprise), result_.steps, options_);
      result_.pairs.push_back({.periodic = c.best,
                               .reprise = *c.request->setting,
                               .ratios = ratios(times.second, times.first)});
    }
  }

  const BenchOptions& options_;
  const Workload work_;
  const Snapshot initial_;
  const CheckpointSequential checkpoint_;
  std::optional<runtime::Remat> remat_;
  Chain chain_;
  Snapshot plain_;
  std::vector<std::vector<Action>> plans_;  // of the settings from first_plan_ on
  size_t first_plan_ = 0;
  int64_t budget_ = -1;  // the budget that remat_ has now
  ModelResult result_;
};

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double part = at - static_cast<double>(low);
  return values[low] * (1 - part) + values[high] * part;
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (size_t r = 0; r < std::min(a.size(), b.size()); ++r) result.push_back(a[r] / b[r]);
  return result;
}

ModelResult bench_model(const training::ModelConfig& config, const BenchOptions& options) {
  return ModelBench(config, options).run();
}

ExecutorCost executor_cost(const training::ModelConfig& config, const BenchOptions& options) {
  if (options.progress) options.progress(fmt::format("{}: executor cost", config.model));
  const Workload work(config);
  const Snapshot initial = work.snapshot();
  const MakeLoss loss = [&] { return work.plain_loss(); };
  Setting warm_up, plain;
  observed_step(work, initial, loss, warm_up);
  const Snapshot after = observed_step(work, initial, loss, plain);
  const int64_t steps = steps_per_sample(work, options);
  work.restore(initial);
  runtime::Remat remat(work.model.stages, remat_options(work, options));
  remat.plan_for({work.input});
  Setting planned{.kind = Kind::kReprise, .budget = std::numeric_limits<int64_t>::max()};
  verify_reprise(work, initial, after, remat, planned);
  return cost_of_executor(work, remat, steps, options);
}

}  // namespace reprise::bench
