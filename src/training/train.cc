#include "training/train.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <string>
#include <variant>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/prepare.h"
#include "runtime/device/median.h"
#include "runtime/device/stopwatch.h"
#include "training/approximate.h"
#include "training/choose_mode.h"
#include "training/data.h"
#include "training/optimizer.h"
#include "training/outcome.h"
#include "training/planned_steps.h"
#include "training/saved_run.h"

namespace reprise::training {

using runtime::CodecCheck;
using runtime::install_cpu_allocator;
using runtime::memory_count;
using runtime::per_parameter;
using runtime::reset_peak;
using runtime::Stage;
using runtime::Tensors;
using runtime::internal::device::median;
using runtime::internal::device::ProcessorWatch;
using runtime::internal::device::time_run;
using runtime::internal::device::TimedRun;
using runtime::internal::device::typical_time;
using runtime::internal::state::Parked;
using runtime::internal::state::RandomState;

namespace {

using Clock = std::chrono::steady_clock;

// The first steps make memory of their own: the optimizer's state, and the places of an arena. So
// the log begins later.
constexpr int64_t kFirstLogged = 3;

Nanos since(Clock::time_point start) {
  return Nanos(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

class Training {
 public:
  // `why_chain` is the reason if the caller has already turned kAuto into kChain. `saved` may be
  // null.
  Training(const TrainOptions& options, std::string why_chain, const SavedRun* saved)
      : options_(options),
        saved_(saved),
        why_chain_(std::move(why_chain)),
        model_(make_model(options.model)),
        train_(open_dataset(options.data, Split::kTrain, model_)),
        stream_(train_, options.seed, /*shuffle=*/true, rank(options), ranks(options)),
        batch_(train_->allocate()),
        parameters_(tensors_of(model_, false)),
        buffers_(tensors_of(model_, true)),
        optimizer_(make_optimizer(options, parameters_)),
        planned_(make_planned_steps(
            model_, options_, options.consume_gradients ? per_parameter(*optimizer_) : nullptr)) {
    // Each rank drops out for itself.
    if (options.group != nullptr)
      at::manual_seed(options.seed + static_cast<uint64_t>(rank(options)));
    report_.data = train_->description();
    report_.ranks = ranks(options);
    report_.parameters = Bytes(memory_count(c10::kCPU).live);
    if (saved_ != nullptr && saved_->found()) go_on_from(*saved_->found());
    stream_.next(batch_);
  }

  TrainReport run() {
    if (options_.check) measure_plain_peak();
    if (!make_plan()) return std::move(report_);
    if (options_.check && options_.group == nullptr) compare();
    train_steps();
    if (options_.group != nullptr) options_.group->barrier();
    if (options_.test_samples > 0 && rank(options_) == 0 && !report_.stopped) test();
    return std::move(report_);
  }

 private:
  static int rank(const TrainOptions& options) {
    return options.group == nullptr ? 0 : options.group->rank();
  }
  static int ranks(const TrainOptions& options) {
    return options.group == nullptr ? 1 : options.group->size();
  }

  // Returns the tensors of all modules, each once.
  static std::vector<at::Tensor> tensors_of(const Model& model, bool buffers) {
    std::vector<at::Tensor> all;
    std::set<const void*> seen;
    for (const Stage& stage : model.stages) {
      if (!stage.module) continue;
      for (const at::Tensor& tensor :
           buffers ? stage.module->buffers() : stage.module->parameters()) {
        if (seen.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(tensor);
      }
    }
    return all;
  }

  int64_t steps_in_all() const {
    return options_.steps > 0 ? options_.steps : options_.epochs * stream_.per_epoch();
  }

  runtime::StateParts parts() const {
    return {.model = model_.module(), .optimizer = optimizer_.get()};
  }

  void go_on_from(const runtime::Progress& progress) {
    if (progress.step >= steps_in_all()) {
      throw InputError(
          fmt::format("the run of this state has done its {} steps; ask for more of them "
                      "(--steps, --epochs)",
                      progress.step),
          {.file = options_.state, .pointer = {}, .line = 0});
    }
    saved_->load(parts());
    stream_.seek(progress.position);
    report_.went_on_after = progress.step;
  }

  void save(int64_t step) const {
    planned_->fetch();
    const std::optional<Plan>& plan = planned_->planned().plan;  // none in online mode
    saved_->save(parts(), step, planned_->parts(), plan ? &*plan : nullptr);
  }

  void set_training(bool training) {
    for (const Stage& stage : model_.stages) {
      if (stage.module) stage.module->train(training);
    }
  }

  void progress(const std::string& message) const {
    if (options_.observer) options_.observer({"train", -1, message});
  }

  enum class Kind { kPlain, kByHand, kPlanned };

  // kByHand is plain training in as many parts as the planned step.
  at::Tensor run_step(Kind kind) {
    if (kind == Kind::kPlanned) return planned_->run(batch_);
    const int64_t parts = kind == Kind::kByHand ? planned_->parts() : 1;
    return training_step(model_, options_.parts_from, parts)({batch_.input, batch_.target})[0];
  }

  void drop_gradients() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  }

  Outcome outcome(const at::Tensor& loss) const {
    Tensors gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    Outcome all{Parked({loss.detach()}), Parked(gradients), Parked(buffers_),
                RandomState(c10::kCPU)};
    if (options_.consume_gradients) {
      planned_->fetch();
      all.parameters = Parked(parameters_);
      all.state = state_of(*optimizer_, parameters_);
    }
    return all;
  }

  // Before holds everything that the next step would change, so that a step can be tried and taken
  // back.
  struct Before {
    Parked buffers;
    RandomState random;
    Parked parameters = {};
    OptimizerState state = {};
  };
  Before before() const {
    Before all{Parked(buffers_), RandomState(c10::kCPU)};
    if (options_.consume_gradients) {
      planned_->fetch();
      all.parameters = Parked(parameters_);
      all.state = state_of(*optimizer_, parameters_);
    }
    return all;
  }

  void take_back(const Before& saved) {
    drop_gradients();
    saved.random.restore();
    put_back(buffers_, saved.buffers);
    if (!options_.consume_gradients) return;
    planned_->fetch();
    put_back(parameters_, saved.parameters);
    put_back(*optimizer_, parameters_, saved.state);
  }

  // Runs a step on the current batch, up to its gradients, and takes it back. Returns its outcome
  // if `keep` is set.
  std::optional<Outcome> try_step(Kind kind, TimedRun& time, bool keep) {
    const bool planned = kind == Kind::kPlanned;
    const Before saved = before();
    // The first step sends away what lies elsewhere, and a step in training finds it there.
    const bool has_homes = options_.offload_optimizer || options_.offload_parameters;
    if (planned && has_homes && !keep) run_step(kind);
    std::optional<Outcome> result;
    {
      reset_peak(c10::kCPU);
      at::Tensor loss;
      time = time_run(c10::kCPU, [&] {
        loss = run_step(kind);
        if (!planned && options_.consume_gradients) optimizer_->step();
      });
      if (planned) {
        note_peak();
      } else {
        report_.plain_peak = Bytes(memory_count(c10::kCPU).peak);
        if (options_.consume_gradients) drop_gradients();
      }
      if (keep) result.emplace(outcome(loss));
    }
    take_back(saved);
    return result;
  }

  // Plain training runs twice, because the first step of a process may take memory that later steps
  // find in caches.
  void measure_plain_peak() {
    TimedRun time;
    for (int k = 0; k < 2; ++k) {
      progress("plain training");
      try_step(Kind::kPlain, time, false);
    }
  }

  // Runs plain and planned steps in turn, so that a machine that slows down slows both. The first
  // pair is compared bit by bit and not timed: its planned step touches the memory of the arena for
  // the first time.
  void compare() {
    const ProcessorWatch watch(c10::kCPU);
    std::vector<TimedRun> plain_runs, planned_runs;
    const Bytes plain_peak =
        *report_.plain_peak;  // plain steps now count Reprise's copies of buffers, too
    report_.timed_pairs = std::max(1, options_.compare_steps);
    for (int64_t k = 0; k <= report_.timed_pairs; ++k) {
      progress("plain training against the plan");
      const bool first = k == 0;
      TimedRun time;
      const bool whole = planned_->parts() == 1;
      std::optional<Outcome> plain = try_step(Kind::kPlain, time, first && whole);
      if (!first) plain_runs.push_back(time);
      if (first) planned_->check_codecs(CodecCheck::kCompare);
      std::optional<Outcome> planned = try_step(Kind::kPlanned, time, first);
      if (!first) planned_runs.push_back(time);
      if (!first) continue;
      if (!whole) plain = try_step(Kind::kByHand, time, true);
      planned = without_codecs(*plain, *std::move(planned));
      report_.gradients_equal = equal(*plain, *planned);
      if (!*report_.gradients_equal && rounds()) {
        report_.largest_difference = difference(*plain, *planned, parameters_);
        report_.last_bit_difference = difference(*plain, moved_step(), parameters_);
      } else if (!*report_.gradients_equal) {
        report_.plain_repeats = equal(*plain, *try_step(Kind::kByHand, time, true));
      }
    }
    report_.plain_peak = plain_peak;
    const int64_t share = watch.percent();
    report_.plain_time = typical_time(plain_runs, share < 100);
    report_.planned_time = typical_time(planned_runs, share < 100);
    report_.processor_percent = std::min(report_.processor_percent, share);
  }

  // Compares each approximate alternative that the plan uses with its own bound. Returns the outcome
  // of the step in which the backward reads what they encode as it was: `planned`, if there are none.
  Outcome without_codecs(const Outcome& plain, Outcome planned) {
    report_.approximate = uses_of(planned_->approximate_values());
    if (!report_.approximate.empty()) {
      report_.approximate_forward_equal = equal_forward(plain, planned);
      report_.approximate_difference = difference(plain, planned, parameters_);
      planned_->check_codecs(CodecCheck::kBypass);
      TimedRun time;
      planned = *try_step(Kind::kPlanned, time, true);
    }
    planned_->check_codecs(CodecCheck::kNone);
    return planned;
  }

  // Runs a plain step from parameters that differ in their last bits.
  Outcome moved_step() {
    const Parked parameters(parameters_);
    move_by_last_bit(parameters_);
    TimedRun time;
    std::optional<Outcome> result = try_step(Kind::kByHand, time, true);
    put_back(parameters_, parameters);
    return *std::move(result);
  }

  // Returns whether the plan runs a variant that rounds in another way than plain training.
  bool rounds() const {
    const Graph* graph = std::get_if<Graph>(&report_.profile.problem);
    if (graph == nullptr || !report_.plan.plan) return false;
    std::set<std::string> others;
    for (const Op& op : graph->ops) {
      for (const Variant& variant : op.variants) {
        if (variant.exactness == Exactness::kRounding) others.insert(op.id + "/" + variant.name);
      }
    }
    const std::vector<Action>& actions = report_.plan.plan->actions;
    return std::any_of(actions.begin(), actions.end(), [&](const Action& action) {
      return others.contains(action.id + "/" + action.variant);
    });
  }

  bool make_plan() {
    Budget budget = options_.budget;
    if (budget.relative() && report_.plain_peak) budget = budget.resolve(*report_.plain_peak);
    report_.plan = planned_->prepare(batch_, budget);
    report_.mode = planned_->mode();
    if (why_chain_.empty()) why_chain_ = planned_->why_chain();
    if (options_.on_mode) options_.on_mode(report_.mode, why_chain_);
    report_.profile = planned_->profile();
    report_.processor_percent = report_.profile.processor_percent;
    report_.machine = planned_->machine();
    if (const auto captured = planned_->captured()) {
      report_.homed_state_bytes = captured->homed_state;
      report_.homed_parameters_bytes = captured->homed_parameters;
    }
    report_.parts = planned_->parts();
    report_.tried = planned_->tried();
    report_.budget = report_.plan.budget;
    return report_.plan.plan.has_value() || report_.mode == TrainMode::kOnline;
  }

  void note_peak() {
    const StepPeak step = planned_->peak();
    report_.predicted_peak = std::max(report_.predicted_peak, step.predicted);
    report_.measured_peak = std::max(report_.measured_peak, step.measured);
    report_.peaks_equal &= step.predicted == step.measured;
    if (!options_.offload.to.empty()) report_.moved = planned_->moved();
    report_.captured = planned_->captured();
    report_.guards = planned_->guards();
    if (report_.captured) report_.fallbacks += report_.captured->fallbacks;
    report_.online = planned_->online();
  }

  void train_steps() {
    const int64_t steps = steps_in_all(), first = report_.went_on_after + 1;
    std::vector<Nanos> times;
    const int64_t first_logged = std::min(steps, first - 1 + kFirstLogged);
    const double rate = optimizer_->param_groups().at(0).options().get_lr();
    for (int64_t number = first; number <= steps; ++number) {
      if (options_.schedule == LearningRateSchedule::kLinear) {
        const auto left = static_cast<double>(steps - number + 1) / static_cast<double>(steps);
        set_learning_rate(*optimizer_, rate * left);
      }
      if (number == first_logged) planned_->log_steps(options_.log_steps);
      TrainStep step{.number = number, .of = steps, .budget = report_.budget};
      step.epoch = (number - 1) / stream_.per_epoch() + 1;
      const auto start = Clock::now();
      {
        const at::Tensor loss = planned_->run(batch_);
        step.time = since(start);
        step.loss = loss.item<double>();
        if (options_.group != nullptr) step.loss = options_.group->average(step.loss);
      }
      times.push_back(step.time);
      note_peak();
      step.peak = planned_->peak().measured;
      if (!options_.consume_gradients) {
        optimizer_->step();
        optimizer_->zero_grad(/*set_to_none=*/true);
      }
      report_.steps = number;
      if (number == first) report_.first_loss = step.loss;
      report_.last_loss = step.loss;
      const bool due = options_.save_every > 0 && number % options_.save_every == 0;
      if (saved_ != nullptr && due && number < steps) save(number);
      if (options_.on_step) options_.on_step(step);
      if (options_.stop && options_.stop()) {
        report_.stopped = true;
        break;
      }
      if (number < steps) stream_.next(batch_);
    }
    if (saved_ != nullptr) save(report_.steps);
    report_.step_time = median(times);
    report_.run_log = planned_->run_log();
    if (report_.mode == TrainMode::kOnline) return;
    // The saved plan must be the plan that ran.
    if (planned_->planned().plan != report_.plan.plan) report_.plan = planned_->planned();
    report_.profile = planned_->profile();
  }

  void test() {
    const auto data = open_dataset(options_.data, Split::kTest, model_);
    BatchStream stream(data, options_.seed, /*shuffle=*/false);
    planned_->fetch();
    set_training(false);
    at::NoGradGuard no_grad;
    const int64_t batches = std::min(
        stream.per_epoch(), std::max<int64_t>(1, options_.test_samples / data->batch_size()));
    int64_t right = 0, all = 0;
    for (int64_t b = 0; b < batches; ++b) {
      progress("test batch " + std::to_string(b + 1) + " of " + std::to_string(batches));
      stream.next(batch_);
      at::Tensor output = run_stages(model_, batch_.input);
      // Classes are in dimension 1, and for text in the last dimension.
      const int64_t dimension = model_.task == "text" ? output.dim() - 1 : 1;
      const at::Tensor hits = output.argmax(dimension).reshape(-1).eq(batch_.target.reshape(-1));
      right += hits.sum().item<int64_t>();
      all += hits.numel();
      if (options_.stop && options_.stop()) break;
    }
    report_.accuracy = static_cast<double>(right) / static_cast<double>(all);
    report_.tested = batches * data->batch_size();
    set_training(true);
  }

  const TrainOptions& options_;
  const SavedRun* saved_;
  std::string why_chain_;
  Model model_;
  std::shared_ptr<const Dataset> train_;
  BatchStream stream_;
  Batch batch_;
  std::vector<at::Tensor> parameters_, buffers_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<PlannedSteps> planned_;
  TrainReport report_;
};

}  // namespace

TrainReport train(const TrainOptions& given) {
  validate(given);
  TrainOptions options = given;
  std::string why_chain = choose_mode(options);
  install_cpu_allocator();
  std::optional<SavedRun> saved;
  if (!options.state.empty()) saved.emplace(options);
  at::manual_seed(options.seed);
  return Training(options, std::move(why_chain), saved ? &*saved : nullptr).run();
}

}  // namespace reprise::training
