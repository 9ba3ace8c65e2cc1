#include "runtime/chain/measure.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <numeric>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/equal_stages.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/device.h"
#include "runtime/device/made_storages.h"
#include "runtime/device/stopwatch.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/state/park.h"
#include "runtime/state/random_state.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using device::counted_bytes_of;
using device::drain_backward_queue;
using device::MadeStorages;
using device::make_node;
using device::ProcessorWatch;
using device::storage_bytes;
using device::storages_taken_since;
using device::time_run;
using device::TimedRun;
using device::typical_time;
using device::uncounted_bytes;
using device::wall_times;
using state::Parked;
using state::RandomState;
using state::ValueKeeper;

namespace {

// The memory before, after and during one run.
struct Reading {
  int64_t before = 0, after = 0, peak = 0;  // bytes
};

class Measurement {
 public:
  Measurement(const PreparedModel& model, const Tensors& sample, const Loss& loss,
              const MeasureOptions& options)
      : model_(model), loss_(loss), options_(options), book_(model.parameters.size()) {
    measured_.chain.name = options.name;
    const int64_t input = storage_bytes(sample);
    measured_.chain.input.bytes = Bytes(input);
    // Memory that was taken before the allocator was installed is resident, too.
    Tensors resident = sample;
    resident.insert(resident.end(), model.parameters.begin(), model.parameters.end());
    const int64_t level = memory_count(model.device).live + uncounted_bytes(resident);
    measured_.chain.fixed = Bytes(std::max<int64_t>(0, level - input));
    boundaries_.emplace_back(sample);
    measured_.copies_gradients.resize(model.stages.size());
  }

  MeasuredChain run() {
    const size_t n = model_.stages.size();
    for (size_t i = 0; i < n; ++i) {
      report(static_cast<double>(i) / static_cast<double>(4 * n), model_.stages[i].stage.name);
      measure_forward(i);
    }
    Parked gradient = measure_loss();
    for (size_t i = n; i-- > 0;) {
      report(1 - static_cast<double>(3 * i) / static_cast<double>(4 * n),
             model_.stages[i].stage.name);
      gradient = measure_backward(i, gradient);
    }
    std::reverse(measured_.spread.begin() + static_cast<std::ptrdiff_t>(backward_times_),
                 measured_.spread.end());
    measured_.processor_percent = watch_.percent();
    if (measured_.processor_percent < 100) {
      report(1, explain_busy_machine(measured_.processor_percent));
    }
    return std::move(measured_);
  }

 private:
  void report(double fraction, const std::string& stage) const {
    if (options_.observer) options_.observer({"profile", fraction, stage});
  }

  template <class Work>
  Reading read(Work&& work) const {
    const int64_t before = memory_count(model_.device).live;
    reset_peak(model_.device);
    work();
    const MemoryCount after = memory_count(model_.device);
    return {before, after.live, after.peak};
  }

  // Calls once(), which returns the nanoseconds of one run, as often as the options demand.
  template <class Once>
  void repeat(Once&& once) const {
    int64_t total = 0;
    for (int runs = 0; runs < options_.min_repeats ||
                       (total < options_.min_time.count() && runs < options_.max_repeats);
         ++runs) {
      total += once();
    }
  }

  // Returns the time for the chain; the spread has the wall times.
  Nanos note_time(const std::string& op, const std::string& variant,
                  const std::vector<TimedRun>& runs) {
    std::vector<Nanos> times = wall_times(runs);
    std::sort(times.begin(), times.end());
    measured_.spread.push_back({op, variant, static_cast<int64_t>(times.size()), times.front(),
                                times[times.size() / 2], times.back()});
    return typical_time(runs, watch_.busy());
  }

  template <class Once>
  Nanos measured_time(const std::string& op, const std::string& variant, Once&& once) {
    std::vector<TimedRun> runs;
    repeat([&] {
      runs.push_back(once());
      return runs.back().wall.count();
    });
    return note_time(op, variant, runs);
  }

  void measure_forward(size_t i) {
    const PreparedStage& prepared = model_.stages[i];
    reprise::Stage& row = measured_.chain.stages.emplace_back();
    row.name = prepared.stage.name;
    row.random = prepared.traits.random;
    measured_.saved_form.emplace_back();
    const RandomState random(model_.device);
    for (const NamedSavedForm& way : keepings_) {
      Tensors x = boundaries_[i].restore();
      random.restore();
      if (way.saved_form.rebuild && !rebuilds_same_bits(prepared, x, model_.parameters)) continue;
      random.restore();
      StageOption option;
      option.name = way.name;
      measure_kept_bytes(prepared, way.saved_form, x, row, option);
      if (!saves_most(option, row.options)) continue;
      if (option.saved != Bytes(movable_)) {
        measured_.stays.push_back(fmt::format("s{}.{}", i, option.name));
      }
      row.options.push_back(std::move(option));
      measured_.saved_form.back().push_back(way.saved_form);
    }

    Tensors x = boundaries_[i].restore();
    Tensors y;
    random.restore();
    Reading fast = read([&] { y = run_fast(prepared, x, model_.parameters); });
    row.forward.workspace = Bytes(std::max<int64_t>(0, fast.peak - fast.after));
    row.forward.time = measured_time(fmt::format("F{}", i), "fast", [&] {
      y.clear();
      random.restore();
      return time_run(model_.device, [&] { y = run_fast(prepared, x, model_.parameters); });
    });
    boundaries_.emplace_back(y);
  }

  // Returns whether an option saves enough compared with the options before it, which take less
  // time.
  static bool saves_most(const StageOption& option, const std::vector<StageOption>& others) {
    constexpr Bytes kWorthwhile{1024};
    return std::all_of(others.begin(), others.end(), [&](const StageOption& other) {
      return option.saved + kWorthwhile <= other.saved;
    });
  }

  // Measures the bytes that a kept run holds. Also finds out which boundaries the backward needs:
  // their memory does not come back when nobody else holds them. Clears x.
  void measure_kept_bytes(const PreparedStage& prepared, const SavedForm& saved_form, Tensors& x,
                          reprise::Stage& row, StageOption& option) {
    std::pair<Tensors, Kept> result;
    Reading keep;
    {
      const MadeStorages made(model_.device);
      keep = read([&] { result = run_keep(prepared, x, model_.parameters, saved_form); });
      movable_ = counted_bytes_of(made.alive_without(result.first));
    }
    const int64_t output = storage_bytes(result.first), input = storage_bytes(x);
    row.output = Bytes(output);
    option.saved = Bytes(std::max<int64_t>(0, keep.after - keep.before - output));
    option.forward.workspace = Bytes(keep.peak - keep.after);
    option.consumes = true;
    result.first.clear();
    const int64_t without_output = memory_count(model_.device).live;
    option.reads_output = keep.after - without_output < output;
    const std::vector<device::WeakStorage> given = storages_taken_since(x, model_.device, 0);
    x.clear();
    const int64_t held = input - (without_output - memory_count(model_.device).live);
    option.reads_input = held > 0;
    const size_t i = measured_.chain.stages.size() - 1;
    const bool needed_later = i == 0 || reads_output(measured_.chain.stages[i - 1]);
    option.consumes_input = held > 0 && !needed_later;
    // The backward may read only some tensors of a tuple. From now on these count as saved bytes of
    // the stage, and the other tensors are freed.
    if (option.consumes_input && held < input) {
      option.reads_input = false;
      option.saved += Bytes(held);
      movable_ += counted_bytes_of(given);
      option.forward.workspace += Bytes(input - held);
    }
  }

  static bool reads_output(const reprise::Stage& stage) {
    return std::any_of(stage.options.begin(), stage.options.end(),
                       [](const StageOption& option) { return option.reads_output; });
  }

  // Measures the loss as the user's code runs it on the outputs of the chain, until its gradient
  // reaches the chain. Some bytes stay until the end of the step: the loss itself, and the gradient
  // that its backward starts from. They count with g_L here, and later with the last stage's weight
  // gradients.
  Parked measure_loss() {
    const size_t n = model_.stages.size();
    reprise::Stage& last = measured_.chain.stages.back();
    ChainLoss& row = measured_.chain.loss;
    row.consumes = !reads_output(last);
    Tensors gradients;
    int64_t level_before = 0, level_reached = 0, peak = 0, shared = 0;
    auto once = [&] {
      Tensors x = boundaries_[n].restore();
      Tensors held = row.consumes && !options_.output_held ? Tensors() : x;
      auto sink = make_node<LossSink>(model_.device);
      for (size_t e = 0; e < x.size(); ++e) {
        if (model_.stages.back().traits.output_needs_grad[e]) {
          torch::autograd::set_history(x[e], sink.pointer);
        }
      }
      level_before = memory_count(model_.device).live;
      reset_peak(model_.device);
      const TimedRun time = time_run(model_.device, [&] {
        at::AutoGradMode with_grad(true);
        at::Tensor loss = run_loss(std::move(x));
        loss.backward();
      });
      if (!sink.node->reached) throw InputError("the loss does not depend on the model's output");
      gradients = std::move(sink.node->gradients);
      level_reached = sink.node->level;
      peak = sink.node->peak;
      shared = sink.node->shared;
      return time;
    };
    once();  // warm up
    row.cost.time = measured_time("loss", "default", once);
    backward_times_ = measured_.spread.size();

    const int64_t consumed = row.consumes ? last.output.count() : 0;
    const int64_t gradient =
        std::max<int64_t>(0, level_reached - (level_before - consumed));  // with bytes that stay
    last.output_gradient = Bytes(gradient);
    resident_ = std::max<int64_t>(0, gradient - storage_bytes(gradients) + shared);
    measured_.loss_gradient = Bytes(storage_bytes(gradients));
    measured_.loss_resident = Bytes(resident_);
    // The last backward gives back an output that it reads, but the caller still holds the output.
    if (options_.output_held && !row.consumes) resident_ += last.output.count();
    row.cost.workspace = Bytes(std::max<int64_t>(0, peak - level_reached));
    return Parked(gradients);
  }

  at::Tensor run_loss(Tensors x) const {
    at::Tensor loss = loss_(x);
    if (!loss.defined() || loss.numel() != 1) {
      throw InputError("the loss must return a tensor of one element");
    }
    if (!loss.requires_grad()) {
      throw InputError(
          "the loss does not depend on the model's output by operations that have gradients: is "
          "it detached, or does no parameter want a gradient?");
    }
    return loss;
  }

  // Measures the backward of stage i, from g_{i+1} to g_i.
  Parked measure_backward(size_t i, const Parked& gradient) {
    reprise::Stage& row = measured_.chain.stages[i];
    const RandomState random(model_.device);
    Tensors result;
    for (size_t o = 0; o < row.options.size(); ++o) {
      random.restore();
      // Only the run of the first option adds to the gradients of the weights in book_.
      GradientBook again = o == 0 ? GradientBook() : sums_before(i);
      Tensors g_in = measure_backward_bytes(i, o, gradient, o == 0 ? book_ : again);
      if (o == 0) result = std::move(g_in);
    }
    measure_kept_times(i, boundaries_[i].restore(), gradient, random);
    return Parked(result);
  }

  Tensors measure_backward_bytes(size_t i, size_t o, const Parked& gradient, GradientBook& book) {
    const PreparedStage& prepared = model_.stages[i];
    reprise::Stage& row = measured_.chain.stages[i];
    StageOption& option = row.options[o];
    Tensors x = boundaries_[i].restore();
    auto [y, kept] = run_keep(prepared, x, model_.parameters, measured_.saved_form[i][o]);
    if (!option.reads_input) x.clear();
    if (!option.reads_output) y.clear();
    Tensors g = gradient.restore();
    StageGradients made;
    const bool gives_input = option.consumes_input && option.reads_input;
    const int64_t freed = storage_bytes(g) + option.saved.count() +
                          (option.reads_output ? row.output.count() : 0) +
                          (gives_input ? measured_.chain.stages[i - 1].output.count() : 0);
    Reading reading = read([&, &y = y, &kept = kept] {
      y.clear();  // autograd may hold only a part of a tuple
      if (gives_input) x.clear();
      made = run_backward(prepared, std::move(kept), std::move(g), model_.parameters, book);
    });
    option.backward.workspace = Bytes(std::max<int64_t>(0, reading.peak - reading.after));
    if (o > 0) return std::move(made.inputs);
    measured_.copies_gradients[i] = made.copies;
    const int64_t g_in = storage_bytes(made.inputs);
    const bool last = i + 1 == model_.stages.size();
    row.weight_gradient = Bytes(std::max<int64_t>(
        0, reading.after - reading.before + freed - g_in + (last ? resident_ : 0)));
    if (i == 0) {
      measured_.chain.input.gradient = Bytes(g_in);
    } else {
      measured_.chain.stages[i - 1].output_gradient = Bytes(g_in);
    }
    return std::move(made.inputs);
  }

  // Copies of the running sums for those parameters of stage i that a later stage uses, too.
  GradientBook sums_before(size_t i) const {
    GradientBook sums(book_.size());
    for (size_t p : model_.stages[i].parameters) {
      if (book_[p].defined() && shared_later(p, i)) sums[p] = book_[p].clone();
    }
    return sums;
  }

  // The options take turns, so that a change of the machine meanwhile affects all of them.
  void measure_kept_times(size_t i, const Tensors& x, const Parked& gradient,
                          const RandomState& random) {
    const PreparedStage& prepared = model_.stages[i];
    std::vector<StageOption>& options = measured_.chain.stages[i].options;
    std::vector<std::vector<TimedRun>> forward(options.size()), backward(options.size());
    const auto once = [&](size_t o) {
      random.restore();
      std::pair<Tensors, Kept> kept;
      forward[o].push_back(time_run(model_.device, [&] {
        kept = run_keep(prepared, x, model_.parameters, measured_.saved_form[i][o]);
      }));
      kept.first.clear();
      Tensors g = gradient.restore();
      GradientBook sums = sums_before(i);
      backward[o].push_back(time_run(model_.device, [&] {
        run_backward(prepared, std::move(kept.second), std::move(g), model_.parameters, sums);
      }));
      return backward[o].back().wall.count();
    };
    repeat([&] {
      int64_t longest = 0;
      for (size_t o = 0; o < options.size(); ++o) longest = std::max(longest, once(o));
      return longest;
    });
    for (size_t o = 0; o < options.size(); ++o) {
      const std::string& name = options[o].name;
      options[o].backward.time = note_time(fmt::format("B{}", i), name, backward[o]);
      options[o].forward.time = note_time(fmt::format("F{}", i), name, forward[o]);
      if (o == 0) continue;
      // An option does all the work of the option before it, and more. Alone in memory, where pages
      // are fresh, an option that holds less can be faster; in a step it is not. `spread` has the
      // measured times.
      options[o].backward.time = std::max(options[o].backward.time, options[o - 1].backward.time);
      options[o].forward.time = std::max(options[o].forward.time, options[o - 1].forward.time);
    }
  }

  // Returns whether a stage behind stage i uses the parameter, too. The backward of stage i then
  // finds a running sum.
  bool shared_later(size_t parameter, size_t i) const {
    for (size_t k = i + 1; k < model_.stages.size(); ++k) {
      const auto& own = model_.stages[k].parameters;
      if (std::find(own.begin(), own.end(), parameter) != own.end()) return true;
    }
    return false;
  }

  const PreparedModel& model_;
  const Loss& loss_;
  const MeasureOptions& options_;
  const ProcessorWatch watch_{model_.device};
  const std::vector<NamedSavedForm> keepings_ = saved_forms(options_.alternatives);
  MeasuredChain measured_;
  std::vector<Parked> boundaries_;
  GradientBook book_;
  int64_t movable_ = 0;        // bytes of known storages that the last kept run holds
  int64_t resident_ = 0;       // bytes that the loss leaves until the end of the step
  size_t backward_times_ = 0;  // where the spreads of the backward sweep begin
};

}  // namespace

MeasuredChain measure(const PreparedModel& model, const Tensors& sample, const Loss& loss,
                      const MeasureOptions& options) {
  ValueKeeper buffers(model.buffers);
  buffers.save();
  const RandomState random(model.device);
  auto put_back = [&] {
    buffers.restore();
    random.restore();
  };
  // Values that may move are found by the age of their memory.
  const device::DatedScope dated(model.device);
  try {
    MeasuredChain measured = Measurement(model, sample, loss, options).run();
    share_times(model, measured.chain);
    put_back();
    validate(measured.chain);
    return measured;
  } catch (...) {
    drain_backward_queue();
    put_back();
    throw;
  }
}

}  // namespace reprise::runtime::internal::chain
