#include "runtime/chain/measure_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/split_backward.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/made_storages.h"
#include "runtime/device/stopwatch.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using device::counted_bytes_of;
using device::drop_dead;
using device::storage_bytes;
using device::storages_taken_since;
using device::time_run;
using device::TimedRun;
using state::bitwise_equal;

namespace {

// A NotSplit says of a stage why it cannot be split.
struct NotSplit {
  std::string why;
};

struct SplitBytes {
  int64_t kept = 0, input_workspace = 0, weight_workspace = 0;
  bool reads_input = false;

  bool operator==(const SplitBytes&) const = default;
};

bool same_gradients(const Tensors& one, const Tensors& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const at::Tensor& a, const at::Tensor& b) {
                      if (!a.defined() || !b.defined()) return a.defined() == b.defined();
                      return bitwise_equal(a, b);
                    });
}

class SplitMeasurement {
 public:
  SplitMeasurement(const SplitSubject& subject, RunTimes& times, const std::function<void()>& again)
      : subject_(subject), times_(times), again_(again) {}

  // Returns the least number over the stage's backwards. All are measured with the output held,
  // too.
  Bytes output_in_workspace(const std::optional<WeightPart>& part) const {
    int64_t least = subject_.row.output.count();
    for (size_t o = 0; o < subject_.row.options.size(); ++o) {
      const StageOption& option = subject_.row.options[o];
      if (!option.reads_output || !option.consumes) continue;
      const auto beside = [&](bool split, int64_t alone) {
        least = std::min(least, alone - workspace_beside_output(o, split));
      };
      beside(false, option.backward.workspace.count());
      const bool splits =
          part && std::ranges::find(part->options, option.name) != part->options.end();
      if (splits) beside(true, part->rest->workspace.count());
    }
    const bool reads = std::ranges::any_of(
        subject_.row.options, [](const StageOption& option) { return option.reads_output; });
    return Bytes(reads ? std::max<int64_t>(0, least) : 0);
  }

  WeightPart run() {
    const auto [inputs, weights] = run_whole();
    const SplitBytes bytes = measure_bytes(0, inputs, weights);
    WeightPart part;
    part.kept = Bytes(bytes.kept);
    part.consumes = true;
    part.reads_input = bytes.reads_input;
    part.cost.workspace = Bytes(bytes.weight_workspace);
    part.rest = Cost{Nanos(0), Bytes(bytes.input_workspace)};
    const std::vector<StageOption>& options = subject_.row.options;
    part.options.push_back(options[0].name);
    for (size_t o = 1; o < options.size(); ++o) {
      if (subject_.saved_form[o].rebuild) continue;
      if (measure_bytes(o, inputs, weights) == bytes) part.options.push_back(options[o].name);
    }
    measure_times(part);
    return part;
  }

 private:
  int64_t live() const { return memory_count(subject_.device).live; }

  std::pair<Tensors, Kept> keep(size_t option, const Tensors& x) const {
    again_();
    return run_keep(subject_.stage, x, subject_.parameters, subject_.saved_form[option]);
  }

  // Runs the backward in one piece and returns its gradients.
  std::pair<Tensors, GradientBook> run_whole() const {
    GradientBook book(subject_.parameters.size());
    Kept kept = keep(0, subject_.input.restore()).second;
    Tensors inputs = run_backward(subject_.stage, std::move(kept), subject_.gradient.restore(),
                                  subject_.parameters, book)
                         .inputs;
    return {std::move(inputs), std::move(book)};
  }

  // Returns whether the second half reads the input, which then stays.
  bool reads_input_later(size_t o) const {
    Tensors x = subject_.input.restore();
    auto from_x = storages_taken_since(x, subject_.device, 0);
    auto [y, kept] = keep(o, x);
    auto from_y = storages_taken_since(y, subject_.device, 0);
    x.clear();
    y.clear();
    const InputGradients made = run_input_gradient(
        subject_.stage, std::move(kept), subject_.gradient.restore(), subject_.parameters);
    drop_dead(from_x);
    drop_dead(from_y);
    if (counted_bytes_of(from_y) > 0) throw NotSplit{"its weight gradients read its output"};
    // If the forward gives the input up, what autograd holds of it counts as saved.
    return subject_.row.options[o].reads_input && counted_bytes_of(from_x) > 0;
  }

  SplitBytes measure_bytes(size_t o, const Tensors& inputs, const GradientBook& weights) const {
    const StageOption& option = subject_.row.options[o];
    SplitBytes bytes{.reads_input = reads_input_later(o)};
    const int64_t base = live();
    Tensors x = subject_.input.restore();
    const int64_t stays = bytes.reads_input ? storage_bytes(x) : 0;
    auto [y, kept] = keep(o, x);
    Tensors stays_here = bytes.reads_input ? x : Tensors();
    // The plan has given up the rest when the backward begins; see measure.cc.
    if (!option.reads_input || option.consumes_input) x.clear();
    y.clear();
    Tensors g = subject_.gradient.restore();
    reset_peak(subject_.device);
    InputGradients made =
        run_input_gradient(subject_.stage, std::move(kept), std::move(g), subject_.parameters);
    const MemoryCount first = memory_count(subject_.device);
    bytes.input_workspace = std::max<int64_t>(0, first.peak - first.live);
    x.clear();
    const int64_t gradient = subject_.input_gradient.count();
    if (storage_bytes(made.inputs) != gradient) {
      throw NotSplit{"it hands on memory of the gradients that it gets"};
    }
    bytes.kept = live() - base - gradient - stays;
    GradientBook book(subject_.parameters.size());
    reset_peak(subject_.device);
    run_weight_gradient(subject_.stage, std::move(made.later), subject_.parameters, book);
    const MemoryCount second = memory_count(subject_.device);
    bytes.weight_workspace = std::max<int64_t>(0, second.peak - second.live);
    const int64_t left = second.live - base - gradient - stays;
    if (left != subject_.weight_gradient.count()) {
      throw NotSplit{fmt::format("its weight gradients take {} bytes apart, and {} with the others",
                                 left, subject_.weight_gradient.count())};
    }
    if (!same_gradients(made.inputs, inputs) || !same_gradients(book, weights)) {
      throw NotSplit{"its gradients have other bits then"};
    }
    return bytes;
  }

  // Returns the workspace of a backward, or of its first half, while somebody holds the output.
  int64_t workspace_beside_output(size_t o, bool split) const {
    const StageOption& option = subject_.row.options[o];
    const bool stays = split && reads_input_later(o);
    Tensors x = subject_.input.restore();
    auto [y, kept] = keep(o, x);
    if (!stays && (!option.reads_input || option.consumes_input)) x.clear();
    Tensors g = subject_.gradient.restore();
    reset_peak(subject_.device);
    GradientBook book(subject_.parameters.size());
    InputGradients first;
    StageGradients whole;
    if (split) {
      first =
          run_input_gradient(subject_.stage, std::move(kept), std::move(g), subject_.parameters);
    } else {
      whole =
          run_backward(subject_.stage, std::move(kept), std::move(g), subject_.parameters, book);
    }
    const MemoryCount count = memory_count(subject_.device);
    return count.peak - count.live;
  }

  void measure_times(WeightPart& part) {
    std::vector<TimedRun> first, second;
    const Tensors x = subject_.input.restore();
    times_.repeat([&] {
      Kept kept = keep(0, x).second;
      Tensors g = subject_.gradient.restore();
      InputGradients made;
      first.push_back(time_run(subject_.device, [&] {
        made =
            run_input_gradient(subject_.stage, std::move(kept), std::move(g), subject_.parameters);
      }));
      GradientBook book(subject_.parameters.size());
      second.push_back(time_run(subject_.device, [&] {
        run_weight_gradient(subject_.stage, std::move(made.later), subject_.parameters, book);
      }));
      return first.back().wall.count() + second.back().wall.count();
    });
    const std::string& name = part.options.front();
    part.rest->time = times_.note(fmt::format("I{}", subject_.number), name, first);
    part.cost.time = times_.note(fmt::format("W{}", subject_.number), name, second);
  }

  const SplitSubject& subject_;
  RunTimes& times_;
  const std::function<void()>& again_;
};

}  // namespace

MeasuredSplit measure_split(const SplitSubject& subject, RunTimes& times,
                            const std::function<void()>& again,
                            const std::function<void()>& forget_error) {
  MeasuredSplit result;
  SplitMeasurement measurement(subject, times, again);
  if (!subject.stage.parameters.empty()) {
    try {
      result.part = measurement.run();
    } catch (const NotSplit& reason) {
      result.why_not = reason.why;
    } catch (const std::exception& error) {  // a hook, a node of the user that runs only once
      result.why_not = error.what();
      result.why_not = result.why_not.substr(0, result.why_not.find('\n'));
      if (forget_error) forget_error();
      device::drain_backward_queue();
    }
  }
  result.output_in_workspace = measurement.output_in_workspace(result.part);
  return result;
}

void fit_times(const reprise::Stage& row, WeightPart& part) {
  for (const StageOption& option : row.options) {
    part.cost.time = std::min(part.cost.time, option.backward.time);
  }
  for (const StageOption& option : row.options) {
    part.rest->time = std::max(part.rest->time, option.backward.time - part.cost.time);
  }
}

}  // namespace reprise::runtime::internal::chain
