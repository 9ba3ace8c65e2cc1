#include "runtime/chain/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/agreement.h"
#include "runtime/chain/equal_stages.h"
#include "runtime/chain/kept_bytes.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/chain/option_times.h"
#include "runtime/chain/problem.h"
#include "runtime/chain/run_times.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/device.h"
#include "runtime/device/made_storages.h"
#include "runtime/device/stopwatch.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/state/park.h"
#include "runtime/state/random_state.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using device::drain_backward_queue;
using device::make_node;
using device::storage_bytes;
using device::time_run;
using device::TimedRun;
using device::uncounted_bytes;
using state::Parked;
using state::RandomState;
using state::ValueKeeper;

namespace {

class Measurement {
 public:
  Measurement(const PreparedModel& model, const std::vector<Tensors>& samples, const Loss& loss,
              const MeasureOptions& options, const Splitting& splitting)
      : model_(model),
        splitting_(splitting),
        loss_(loss),
        options_(options),
        boundaries_(model.boundaries()),
        book_(model.parameters.size()) {
    measured_.chain.name = options.name;
    Tensors resident;
    int64_t input = 0;
    for (size_t b = 0; b < samples.size(); ++b) {
      resident.insert(resident.end(), samples[b].begin(), samples[b].end());
      const int64_t so_far = storage_bytes(resident);
      measured_.inputs.push_back({.bytes = Bytes(so_far - input), .gradient = {}});
      input = so_far;
      boundaries_[model.input_of(model.branches[b].first)] = Parked(samples[b]);
    }
    measured_.chain.input.bytes = Bytes(input);
    // Memory that was taken before the allocator was installed is resident, too.
    resident.insert(resident.end(), model.parameters.begin(), model.parameters.end());
    if (model.resident) {
      for (at::Tensor& tensor : model.resident()) resident.push_back(std::move(tensor));
    }
    const int64_t level = memory_count(model.device).live + uncounted_bytes(resident);
    measured_.chain.fixed = Bytes(std::max<int64_t>(0, level - input));
    measured_.copies_gradients.resize(model.stages.size());
    if (splitting.measured) measured_.splits.resize(model.stages.size());
  }

  MeasuredChain run() {
    const size_t n = model_.stages.size();
    for (size_t i = 0; i < n; ++i) {
      report(static_cast<double>(i) / static_cast<double>(4 * n), model_.stages[i].stage.name);
      measure_forward(i);
    }
    const std::vector<Parked> last = measure_loss();
    Parked gradient;
    for (size_t i = n; i-- > 0;) {
      if (model_.ends(i)) {
        gradient = last[model_.branch_of(i)];
        holds_ = held_[model_.branch_of(i)];
      }
      report(1 - static_cast<double>(3 * i) / static_cast<double>(4 * n),
             model_.stages[i].stage.name);
      gradient = measure_backward(i, gradient);
    }
    if (options_.output_held) measured_.output_dropped = with_output_dropped();
    measured_.spread = times_.take_spread();
    measured_.processor_percent = times_.processor_percent();
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
    return read_memory(model_.device, std::forward<Work>(work));
  }

  void measure_forward(size_t i) {
    const PreparedStage& prepared = model_.stages[i];
    reprise::Stage& row = measured_.chain.stages.emplace_back();
    row.name = prepared.stage.name;
    row.random = prepared.traits.random;
    measured_.saved_form.emplace_back();
    measured_.noted.emplace_back();
    const RandomState random(model_.device);
    std::vector<NamedSavedForm> forms = keepings_;
    for (const StageWay& way : prepared.stage.ways) {
      forms.push_back({way.name.c_str(), {.way = forms.size() - keepings_.size() + 1}});
    }
    for (const NamedSavedForm& form : forms) {
      Tensors x = boundaries_[model_.input_of(i)].restore();
      random.restore();
      if (form.saved_form.rebuild &&
          on_any_rank(!rebuilds_same_bits(prepared, x, model_.parameters))) {
        continue;
      }
      random.restore();
      StageOption option;
      option.name = form.name;
      const bool input_needed = model_.begins(i) || reads_output(measured_.chain.stages[i - 1]);
      const int64_t movable = measure_kept_bytes(
          [&] { return run_keep(prepared, x, model_.parameters, form.saved_form); }, model_.device,
          input_needed, x, row, option);
      if (form.saved_form.way > 0) {
        option.exactness = Exactness::kRounding;
      } else if (on_any_rank(!saves_most(option, row.options))) {
        continue;
      }
      if (option.saved != Bytes(movable)) {
        measured_.stays.push_back(fmt::format("s{}.{}", i, option.name));
      }
      random.restore();
      measured_.noted.back().push_back(measure_stopped(i, random, form.saved_form, option));
      row.options.push_back(std::move(option));
      measured_.saved_form.back().push_back(form.saved_form);
    }

    Tensors x = boundaries_[model_.input_of(i)].restore();
    Tensors y;
    random.restore();
    Reading fast = read([&] { y = run_fast(prepared, x, model_.parameters); });
    row.forward.workspace = Bytes(std::max<int64_t>(0, fast.peak - fast.after));
    row.forward.time = times_.measure(fmt::format("F{}", i), "fast", [&] {
      y.clear();
      random.restore();
      return time_run(model_.device, [&] { y = run_fast(prepared, x, model_.parameters); });
    });
    boundaries_[model_.output_of(i)] = Parked(y);
  }

  // Measures the bytes of a run of the option that stops early. Returns the calls of such a run;
  // none if it would not leave the same bytes.
  NotedCalls measure_stopped(size_t i, const RandomState& random, const SavedForm& form,
                             StageOption& option) {
    const PreparedStage& prepared = model_.stages[i];
    if (option.reads_output || model_.ranks != nullptr || splitting_.measured) return {};
    Tensors x = boundaries_[model_.input_of(i)].restore();
    NotedCalls calls = note_calls(prepared, x, model_.parameters, form, model_.device);
    if (calls.empty()) return {};
    const RandomState after(model_.device);
    random.restore();
    std::optional<Kept> kept;
    const Reading run = read([&] {
      kept = run_stopped(prepared, x, model_.parameters, form, calls, model_.device,
                         begin_pass(prepared.parameters, model_.parameters));
    });
    const int64_t input = storage_bytes(x);
    x.clear();
    const int64_t held = input - (run.after - memory_count(model_.device).live);
    // If the run gives back its input, the part of it that autograd holds counts as saved.
    const bool gives_input = option.consumes_input && !option.reads_input;
    const int64_t saved = run.after - run.before + (gives_input ? held : 0);
    const int64_t workspace = run.peak - run.after + (gives_input ? input - held : 0);
    const Bytes most = option.forward.workspace + measured_.chain.stages[i].output;
    if (!kept || !after.is_now() || Bytes(saved) != option.saved || Bytes(workspace) > most) {
      return {};
    }
    option.stopped = Cost{.time = {}, .workspace = Bytes(workspace)};
    return calls;
  }

  // All ranks run the same stages in the same way, so one answer stands for all ranks.
  bool on_any_rank(bool mine) const {
    return chain::on_any_rank(model_.ranks, mine, model_.device);
  }

  // Each backward of a stage begins without gradients of its sharded parameters, as in a step.
  static void drop_sharded_gradients(const PreparedStage& prepared) {
    if (prepared.stage.sharded) prepared.stage.sharded->take_gradients();
  }

  // Returns whether an option saves enough compared with the options before it, which take less
  // time.
  static bool saves_most(const StageOption& option, const std::vector<StageOption>& others) {
    constexpr Bytes kWorthwhile{1024};
    return std::all_of(others.begin(), others.end(), [&](const StageOption& other) {
      return option.saved + kWorthwhile <= other.saved;
    });
  }

  static bool reads_output(const reprise::Stage& stage) {
    return std::any_of(stage.options.begin(), stage.options.end(),
                       [](const StageOption& option) { return option.reads_output; });
  }

  // Sets whether the loss gives back the last activations. If the backward of one branch reads its
  // own, the loss gives back none, and for the plan every branch reads its own: the caller may hold
  // all of them.
  void share_last_activations() {
    std::vector<reprise::Stage>& rows = measured_.chain.stages;
    bool read = false;
    for (size_t b = 0; b < model_.branches.size(); ++b) {
      read = read || reads_output(rows[model_.end_of(b) - 1]);
    }
    measured_.chain.loss.consumes = !read;
    for (size_t b = 0; read && b < model_.branches.size(); ++b) {
      for (StageOption& option : rows[model_.end_of(b) - 1].options) {
        option.reads_output = true;
        option.stopped.reset();
      }
    }
  }

  Tensors last_activations() const {
    std::vector<Tensors> ends;
    for (size_t b = 0; b < model_.branches.size(); ++b) {
      ends.push_back(boundaries_[model_.output_of(model_.end_of(b) - 1)].restore());
    }
    return together(ends);
  }

  // Measures the loss as the user's code runs it on the outputs of the model, with the tail before
  // it, until the gradients reach the branches. Some bytes stay until the end of the step: the loss
  // itself, the gradient that its backward starts from, and the gradients of the tail's weights.
  // They count with g_L of the last branch here, and later with its last stage's weight gradients.
  std::vector<Parked> measure_loss() {
    share_last_activations();
    ChainLoss& row = measured_.chain.loss;
    device::SharedNode<LossSink> sink;
    int64_t level_before = 0;
    bool output_held = options_.output_held;
    auto once = [&] {
      book_.assign(book_.size(), at::Tensor());
      sink = make_node<LossSink>(model_.device, model_.output_counts());
      Tensors x = last_activations();
      const Tensors held = row.consumes && (model_.tail || !output_held) ? Tensors() : x;
      level_before = memory_count(model_.device).live;
      reset_peak(model_.device);
      const TimedRun time = time_run(model_.device, [&] {
        run_to_sink(model_, std::move(x), loss_, output_held, book_, sink);
      });
      if (!sink.node->reached) throw InputError("the loss does not depend on the model's output");
      return time;
    };
    once();  // warm up
    output_held = false;
    once();
    unheld_ = loss_bytes(*sink.node, level_before);
    output_held = options_.output_held;
    row.cost.time = times_.measure("loss", "default", once);
    times_.turn_round();
    return note_loss(*sink.node, level_before);
  }

  // LossBytes are what a run of the loss holds: until the end of the step, and only while it runs.
  struct LossBytes {
    int64_t resident = 0, workspace = 0;
  };

  LossBytes loss_bytes(const LossSink& sink, int64_t level_before) const {
    int64_t consumed = 0, own = 0;
    for (size_t b = 0; b < model_.branches.size(); ++b) {
      if (measured_.chain.loss.consumes) {
        consumed += measured_.chain.stages[model_.end_of(b) - 1].output.count();
      }
      own += sink.own[b];
    }
    const int64_t all =
        std::max<int64_t>(own, sink.level - (level_before - consumed));  // with bytes that stay
    return {all - own, std::max<int64_t>(0, sink.peak - sink.level)};
  }

  // Returns the chain of a step whose caller drops the output with the loss.
  Chain with_output_dropped() const {
    Chain chain = measured_.chain;
    chain.loss.cost.workspace = Bytes(unheld_.workspace);
    *chain.stages.back().output_gradient -= Bytes(held_bytes_.resident - unheld_.resident);
    for (size_t i = 0; i < chain.stages.size(); ++i) {
      Bytes& weights = chain.stages[i].weight_gradient;
      weights -= std::min(weights, Bytes(left_behind(i, held_bytes_, options_.output_held) -
                                         left_behind(i, unheld_, false)));
    }
    return chain;
  }

  std::vector<Parked> note_loss(LossSink& sink, int64_t level_before) {
    std::vector<reprise::Stage>& rows = measured_.chain.stages;
    ChainLoss& row = measured_.chain.loss;
    for (size_t b = 0; b < model_.branches.size(); ++b) {
      rows[model_.end_of(b) - 1].output_gradient = Bytes(sink.own[b]);
    }
    held_bytes_ = loss_bytes(sink, level_before);
    measured_.loss_gradient = Bytes(storage_bytes(together(sink.gradients)));
    measured_.loss_resident = Bytes(held_bytes_.resident);
    *rows.back().output_gradient += Bytes(held_bytes_.resident);
    row.cost.workspace = Bytes(held_bytes_.workspace);
    std::vector<Parked> gradients;
    for (const Tensors& branch : sink.gradients) gradients.emplace_back(branch);
    held_ = std::move(sink.held);
    sink.gradients.clear();
    return gradients;
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
    holds_ = std::move(holds_next_);
    const OptionRuns runs{.number = i,
                          .stage = model_.stages[i],
                          .parameters = model_.parameters,
                          .device = model_.device,
                          .input = boundaries_[model_.input_of(i)],
                          .gradient = gradient,
                          .saved_form = measured_.saved_form[i],
                          .noted = measured_.noted[i]};
    const auto again = [&] {
      random.restore();
      drop_sharded_gradients(model_.stages[i]);
    };
    measure_options(
        runs, times_, again, [&] { return sums_before(i); }, row.options);
    if (splitting_.measured) measure_halves(i, gradient, random);
    return Parked(result);
  }

  // The gradients that the loss holds are those of the stages alone in a pipeline.
  void measure_halves(size_t i, const Parked& gradient, const RandomState& random) {
    const reprise::Stage& row = measured_.chain.stages[i];
    const SplitSubject subject{
        .number = i,
        .stage = model_.stages[i],
        .parameters = model_.parameters,
        .device = model_.device,
        .input = boundaries_[model_.input_of(i)],
        .gradient = gradient,
        .row = row,
        .saved_form = measured_.saved_form[i],
        .input_gradient = boundary_gradient_bytes(measured_.chain, i),
        .weight_gradient = row.weight_gradient - Bytes(left_behind(i)),
    };
    measured_.splits[i] = measure_split(
        subject, times_, [&] { random.restore(); }, splitting_.forget_error);
  }

  Tensors measure_backward_bytes(size_t i, size_t o, const Parked& gradient, GradientBook& book) {
    const PreparedStage& prepared = model_.stages[i];
    reprise::Stage& row = measured_.chain.stages[i];
    StageOption& option = row.options[o];
    drop_sharded_gradients(prepared);
    Tensors x = boundaries_[model_.input_of(i)].restore();
    auto [y, kept] = run_keep(prepared, x, model_.parameters, measured_.saved_form[i][o]);
    if (!option.reads_input) x.clear();
    if (!option.reads_output) y.clear();
    Tensors g = gradient.restore();
    const Tensors held = held_of(g);
    StageGradients made;
    const bool gives_input = option.consumes_input && option.reads_input;
    const int64_t freed = storage_bytes(g) - storage_bytes(held) + option.saved.count() +
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
    const int64_t g_in = note_gradients(made.inputs, held);
    row.weight_gradient =
        Bytes(std::max<int64_t>(0, reading.after - reading.before + freed - g_in + left_behind(i)));
    if (model_.begins(i)) {
      measured_.inputs[model_.branch_of(i)].gradient = Bytes(g_in);
      measured_.chain.input.gradient += Bytes(g_in);
    } else {
      measured_.chain.stages[i - 1].output_gradient = Bytes(g_in);
    }
    return std::move(made.inputs);
  }

  // Returns the gradients of the outputs of the stage whose memory stays until the end of the step.
  Tensors held_of(const Tensors& gradients) const {
    Tensors held;
    for (size_t e = 0; e < gradients.size(); ++e) {
      if (holds_[e]) held.push_back(gradients[e]);
    }
    return held;
  }

  // Notes which gradients of the inputs of the stage lie in the memory of those that are held, and
  // returns the bytes of the others.
  int64_t note_gradients(const Tensors& gradients, const Tensors& held) {
    Tensors own;
    holds_next_.clear();
    for (const at::Tensor& gradient : gradients) {
      holds_next_.push_back(is_among(gradient, held));
      if (!holds_next_.back()) own.push_back(gradient);
    }
    return storage_bytes(own);
  }

  // Returns the bytes that stay until the end of the step and count with the weight gradients of
  // stage i.
  int64_t left_behind(size_t i) const { return left_behind(i, held_bytes_, options_.output_held); }
  int64_t left_behind(size_t i, const LossBytes& loss, bool output_held) const {
    int64_t bytes = i + 1 == model_.stages.size() ? loss.resident : 0;
    // The last backward gives back an output that it reads, but the caller still holds the output.
    const bool returned = model_.ends(i) && !model_.tail;
    if (returned && output_held && !measured_.chain.loss.consumes) {
      bytes += measured_.chain.stages[i].output.count();
    }
    return bytes;
  }

  // Copies of the running sums for those parameters of stage i that a later stage uses, too.
  GradientBook sums_before(size_t i) const {
    GradientBook sums(book_.size());
    for (size_t p : model_.stages[i].parameters) {
      if (book_[p].defined() && model_.uses_behind(i, p)) sums[p] = book_[p].clone();
    }
    return sums;
  }

  const PreparedModel& model_;
  const Splitting& splitting_;
  const Loss& loss_;
  const MeasureOptions& options_;
  const std::vector<NamedSavedForm> keepings_ = saved_forms(options_.alternatives);
  RunTimes times_{model_.device, options_};
  MeasuredChain measured_;
  std::vector<Parked> boundaries_;
  std::vector<std::vector<bool>> held_;  // by branch: LossSink::held
  // Says which gradients of the outputs of the stage are held, and which of its inputs.
  std::vector<bool> holds_, holds_next_;
  GradientBook book_;
  // The first one is for an output that is held as the options say, the second one if it is dropped.
  LossBytes held_bytes_, unheld_;
};

// A run that stops early does a part of the work of the whole one, and the fast run before does the
// rest. Short times that say otherwise are noise: to run a stage again is never faster than to keep
// it.
void bound_stopped_times(Chain& chain) {
  for (reprise::Stage& stage : chain.stages) {
    for (StageOption& option : stage.options) {
      if (!option.stopped) continue;
      const Nanos whole = option.forward.time;
      const Nanos least = std::max(Nanos(0), whole - stage.forward.time);
      option.stopped->time = std::clamp(option.stopped->time, least, whole);
    }
  }
}

}  // namespace

MeasuredChain measure(const PreparedModel& model, const std::vector<Tensors>& samples,
                      const Loss& loss, const MeasureOptions& options, const Splitting& splitting) {
  ValueKeeper buffers(model.buffers);
  buffers.save();
  const RandomState random(model.device);
  std::vector<std::function<void()>> gradients_back;
  for (const PreparedStage& prepared : model.stages) {
    if (!prepared.stage.sharded) continue;
    gradients_back.push_back(prepared.stage.sharded->take_gradients());
  }
  auto put_back = [&] {
    buffers.restore();
    random.restore();
    for (const auto& back : gradients_back) back();
  };
  // Values that may move are found by the age of their memory.
  const device::DatedScope dated(model.device);
  try {
    MeasuredChain measured = Measurement(model, samples, loss, options, splitting).run();
    share_times(model, measured.inputs, measured.chain);
    bound_stopped_times(measured.chain);
    if (measured.output_dropped) bound_stopped_times(*measured.output_dropped);
    for (size_t i = 0; i < measured.splits.size(); ++i) {
      if (auto& part = measured.splits[i].part) fit_times(measured.chain.stages[i], *part);
    }
    put_back();
    std::visit([](const auto& problem) { validate(problem); },
               problem_of(model, measured.chain, measured.inputs));
    return measured;
  } catch (...) {
    drain_backward_queue();
    put_back();
    throw;
  }
}

}  // namespace reprise::runtime::internal::chain
