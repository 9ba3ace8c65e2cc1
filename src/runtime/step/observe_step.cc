#include "runtime/step/observe_step.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/backward_queue.h"
#include "runtime/state/random_state.h"
#include "runtime/step/compare_runs.h"
#include "runtime/step/host_reads.h"

namespace reprise::runtime::internal::step {

using device::drain_backward_queue;
using state::RandomScope;

namespace {

// Puts gradients that were there before the step aside for a scope.
class OtherGradients {
 public:
  enum class Kind { kNone, kZeros };  // what stands in their place

  OtherGradients(const std::vector<at::Tensor>& leaves, Kind kind,
                 Surroundings* surroundings = nullptr) {
    for (const at::Tensor& leaf : leaves) {
      before_.emplace_back(leaf, leaf.grad());
      leaf.mutable_grad() = at::Tensor();
    }
    if (kind == Kind::kNone) return;
    const at::NoGradGuard no_grad;
    for (const at::Tensor& leaf : leaves) {
      leaf.mutable_grad() = at::zeros_like(leaf);
      if (surroundings != nullptr) surroundings->take(leaf.grad());
    }
  }
  ~OtherGradients() {
    // The loop goes backwards, because the first of two entries of one leaf has the gradient from
    // before.
    for (auto entry = before_.rbegin(); entry != before_.rend(); ++entry) {
      entry->first.mutable_grad() = entry->second;
    }
  }
  // Says whether a leaf had a gradient that was put aside.
  bool any() const {
    return std::any_of(before_.begin(), before_.end(),
                       [](const auto& entry) { return entry.second.defined(); });
  }
  // Returns each leaf with the gradient that was put aside.
  const std::vector<std::pair<at::Tensor, at::Tensor>>& before() const { return before_; }
  OtherGradients(const OtherGradients&) = delete;
  OtherGradients& operator=(const OtherGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

// A Subject is a step function with its inputs and with the parameters that it may know besides.
struct Subject {
  const StepFunction& step;
  const Tensors& inputs;
  c10::Device device;
  const std::vector<at::Tensor>& parameters;
  Surroundings* surroundings;
};

int32_t position_of(const at::Tensor& tensor, const Tensors& inputs) {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const at::Tensor& input) { return input.is_same(tensor); });
  return found == inputs.end() ? -1 : static_cast<int32_t>(found - inputs.begin());
}

// Records one run. `images` get what the run wrote outside the step.
Recording recorded_run(const Subject& subject, BeforeImages& images, Scrutiny scrutiny,
                       Audit& audit, const Audit* known) {
  for (const at::Tensor& parameter : subject.parameters) {
    images.keep_place(parameter);
    images.keep_flag(parameter);
  }
  for (const at::Tensor& input : subject.inputs) {
    if (input.defined()) images.keep_flag(input);
  }
  // The cache of the caller's autocast may hold weights that an earlier run has cast.
  at::autocast::clear_cache();
  Recording recording = record(subject.step, subject.inputs, subject.device, images, scrutiny,
                               audit, known, subject.surroundings);
  for (const at::Tensor& tensor : images.flipped()) {
    recording.flags.push_back({.target = tensor,
                               .input = position_of(tensor, subject.inputs),
                               .wanted = tensor.requires_grad()});
  }
  return recording;
}

// Records one run. Puts back everything that the run wrote outside the step, except gradients that
// it does not read.
Recording run_once(const Subject& subject, Scrutiny scrutiny, Audit& audit, const Audit* known) {
  BeforeImages images;
  const RandomScope random(subject.device);
  try {
    Recording recording = recorded_run(subject, images, scrutiny, audit, known);
    images.restore();
    return recording;
  } catch (...) {
    images.restore();
    drain_backward_queue();
    throw;
  }
}

bool lies_in(const TensorRef& ref, const at::Tensor& gradient, const Recording& run) {
  if (ref.memory != Memory::kExternal) return false;
  const at::Tensor& external = run.externals[ref.index].tensor;
  if (!external.defined()) return false;
  const c10::Storage &a = external.storage(), &b = gradient.storage();
  if (a.unsafeGetStorageImpl() == b.unsafeGetStorageImpl()) return true;
  // A storage without bytes is one of ours, and shares nothing.
  const auto has_bytes = [](const c10::Storage& storage) {
    return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
  };
  return has_bytes(a) && has_bytes(b) && a.is_alias_of(b);
}

// Says what a run that began with this gradient did to it. `stayed` is true if the gradient is in
// .grad at the end. `makes_one` is true if the step makes a gradient for this leaf.
Arrival arrival_at(const at::Tensor& gradient, bool stayed, bool makes_one, const Recording& run) {
  const auto is_it = [&](const TensorRef& ref) { return lies_in(ref, gradient, run); };
  int added = 0;
  bool zeroed = false;
  for (const Call& call : run.calls) {
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      const auto& tensors = call.arguments[a].tensors;
      if (std::none_of(tensors.begin(), tensors.end(), is_it)) continue;
      const std::string& name = call.op.operator_name().name;
      if (added == 0 && (name == "aten::zero_" || name == "aten::_foreach_zero_")) {
        zeroed = true;
      } else if (a == 0 && name == "aten::add_") {
        ++added;
      } else {
        return Arrival::kReads;
      }
    }
  }
  if (std::any_of(run.outputs.begin(), run.outputs.end(), is_it)) return Arrival::kReads;
  if (!stayed) return Arrival::kReplaced;
  if (added != (makes_one ? 1 : 0)) return Arrival::kReads;
  return zeroed ? Arrival::kZeroed : Arrival::kAdded;
}

// Refuses a step that reads gradients which were put aside, through a tensor that it knows by
// itself and that they are parts of. The step was recorded without these gradients.
void refuse_gradients_read_as_parts(const OtherGradients& aside, const Recording& run) {
  for (const auto& [leaf, gradient] : aside.before()) {
    if (!gradient.defined() || arrival_at(gradient, false, true, run) != Arrival::kReads) continue;
    throw InputError(
        "the step reads memory in which the .grad of a parameter lies (gradients as parts of one "
        "tensor?): it cannot be captured while they are there. Set gradients to None before, or "
        "read .grad itself");
  }
}

std::vector<at::Tensor> targets_of(const Recording& recording) {
  std::vector<at::Tensor> targets;
  for (const LeafGradient& leaf : recording.gradients) targets.push_back(leaf.target);
  return targets;
}

// Lets inputs begin a run with the flag that the step gives them, as at a second call with them.
class InputsWithFlags {
 public:
  explicit InputsWithFlags(const Recording& recording) {
    for (const GradientFlag& flag : recording.flags) {
      if (flag.input < 0 || !flag.wanted) continue;
      inputs_.push_back(flag.target);
      flag.target.set_requires_grad(true);
    }
  }
  ~InputsWithFlags() {
    for (const at::Tensor& input : inputs_) input.set_requires_grad(false);
  }
  InputsWithFlags(const InputsWithFlags&) = delete;
  InputsWithFlags& operator=(const InputsWithFlags&) = delete;

 private:
  std::vector<at::Tensor> inputs_;
};

std::vector<std::string> names_of_forward(const Recording& recording) {
  std::vector<std::string> names;
  for (const Call& call : recording.calls) {
    const std::string name = call.name();
    // zero_grad() calls these operations only if there are gradients.
    const bool zeroes = name.find("zero_") != std::string::npos;
    if (call.phase == Phase::kForward && !zeroes) names.push_back(name);
  }
  return names;
}

// Notes for each input that the step gives its flag whether it may have the flag already. `run`
// began with all these flags.
void note_flags_at_start(Recording& recording, const Recording& run) {
  const bool same = names_of_forward(recording) == names_of_forward(run);
  for (GradientFlag& flag : recording.flags) {
    flag.at_start = same && flag.input >= 0 && flag.wanted &&
                    !recording.read_without_gradient.contains(flag.input);
  }
}

// Drops leaves that the step made by a call that is no operation (.data). A leaf from before the step
// is the same tensor in both runs.
void drop_made_leaves(const Subject& subject, Recording& recording, const Recording& other) {
  const auto is_there = [&](const at::Tensor& target) {
    return std::any_of(other.gradients.begin(), other.gradients.end(),
                       [&](const LeafGradient& leaf) { return leaf.target.is_same(target); }) ||
           std::any_of(subject.parameters.begin(), subject.parameters.end(),
                       [&](const at::Tensor& parameter) { return parameter.is_same(target); });
  };
  std::erase_if(recording.gradients,
                [&](const LeafGradient& leaf) { return leaf.input < 0 && !is_there(leaf.target); });
}

// Keeps the serial numbers of a run, which is the last one so far.
void note_run(Observation& seen, const Audit& run) {
  seen.audit.begun = run.begun;
  seen.audit.ended = run.ended;
}

// Runs the step without gradients and watches all memory. `known` are facts of earlier runs.
Observation watched_run(const Subject& subject, const Audit& known) {
  Observation seen;
  for (const Scrutiny scrutiny : {Scrutiny::kOnce, Scrutiny::kTwice}) {
    seen.audit = {};
    seen.recording = run_once(subject, scrutiny, seen.audit, &known);
    if (!seen.audit.unclear) break;
  }
  seen.audit.writes.insert(known.writes.begin(), known.writes.end());
  return seen;
}

// Says what another run without gradients does in another way; the text is empty if it is nothing.
std::string difference_of_next_run(const Subject& subject, Observation& seen) {
  Audit audit;
  const Recording again = run_once(subject, Scrutiny::kSmall, audit, &seen.audit);
  std::string text = difference_of_runs(seen.recording, again, /*with_gradients=*/false);
  if (text.empty()) drop_made_leaves(subject, seen.recording, again);
  note_run(seen, audit);
  return text;
}

// Adds to the recording what the step does to gradients that are there when it begins. A run without
// gradients does not show it, so one more run begins with gradients of zeros. Parameters that the
// step does not reach have one, too, because zero_grad() drops it. Returns whether this run does the
// same work as the recording, as far as both can be compared.
bool add_arrivals(const Subject& subject, Observation& seen) {
  Recording& recording = seen.recording;
  std::set<const void*> reached;
  for (const LeafGradient& leaf : recording.gradients) {
    reached.insert(leaf.target.unsafeGetTensorImpl());
  }
  for (const at::Tensor& parameter : subject.parameters) {
    const bool fresh = reached.insert(parameter.unsafeGetTensorImpl()).second;
    if (fresh) recording.gradients.push_back({.target = parameter});
  }
  const InputsWithFlags flags(recording);
  const OtherGradients zeros(targets_of(recording), OtherGradients::Kind::kZeros,
                             subject.surroundings);
  std::vector<at::Tensor> given;
  for (const LeafGradient& leaf : recording.gradients) given.push_back(leaf.target.grad());
  std::vector<bool> from_first_read(given.size(), false);
  const AtFirstRead first_read([&] {
    for (size_t l = 0; l < given.size(); ++l) {
      from_first_read[l] = recording.gradients[l].target.grad().is_same(given[l]);
    }
  });
  Audit audit;
  Recording run;
  try {
    run = run_once(subject, Scrutiny::kSmall, audit, &seen.audit);
  } catch (const InputError&) {
    // The step can be recorded without gradients, but not with them.
    for (LeafGradient& leaf : recording.gradients) leaf.arrival = Arrival::kReads;
    audit.ended = cpu_allocation_serial();
    note_run(seen, audit);
    return false;
  }
  const bool same = difference_of_runs(recording, run, /*with_gradients=*/true).empty();
  note_flags_at_start(recording, run);
  for (size_t l = 0; l < given.size(); ++l) {
    LeafGradient& leaf = recording.gradients[l];
    const auto in_run =
        std::find_if(run.gradients.begin(), run.gradients.end(),
                     [&](const LeafGradient& g) { return g.target.is_same(leaf.target); });
    // The run has not put back a gradient that no operation reads, so .grad shows whether it
    // stayed.
    const bool stayed = in_run != run.gradients.end() ? lies_in(in_run->gradient, given[l], run)
                                                      : leaf.target.grad().is_same(given[l]);
    leaf.arrival = arrival_at(given[l], stayed, leaf.gradient.memory != Memory::kNone, run);
    // A replay drops the gradient before it begins. Behind a host read, the step may be one that
    // keeps it.
    if (leaf.arrival == Arrival::kReplaced && from_first_read[l]) leaf.arrival = Arrival::kReads;
  }
  // A leaf without a gradient of its own that leaves an earlier gradient alone needs no delivery.
  std::erase_if(recording.gradients, [&](const LeafGradient& leaf) {
    return leaf.gradient.memory == Memory::kNone && leaf.arrival == Arrival::kAdded;
  });
  drop_made_leaves(subject, recording, run);
  note_run(seen, audit);
  return same;
}

// Says what differs in so many more runs without gradients; the text is empty if nothing does.
std::string difference_of_next_runs(const Subject& subject, Observation& seen, int count) {
  for (int run = 0; run < count; ++run) {
    std::string text = difference_of_next_run(subject, seen);
    if (!text.empty()) return text;
  }
  return {};
}

size_t literals_of(const Recording& recording) {
  return static_cast<size_t>(
      std::count_if(recording.externals.begin(), recording.externals.end(),
                    [](const External& external) { return external.is_constant; }));
}

// Runs the step until `runs` runs in a row were compared, and says what differs. `seen` is of the
// first run. If the run with gradients cannot be compared, the row begins behind it.
std::string difference_of_runs_after(const Subject& subject, Observation& seen, int runs) {
  try {
    const bool same = add_arrivals(subject, seen);
    return difference_of_next_runs(subject, seen, same ? runs - 2 : runs);
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

Observation observe_step(const StepFunction& step, const Tensors& inputs, c10::Device device,
                         const std::vector<at::Tensor>& parameters, int runs,
                         Surroundings* surroundings) {
  if (runs < 2) {
    throw InputError(fmt::format(
        "a step is recorded in at least 2 runs, which are compared; CaptureOptions::runs is {}",
        runs));
  }
  const Subject subject{step, inputs, device, parameters, surroundings};
  // The step may drop gradients without an operation that shows it, so they are put aside here.
  const OtherGradients aside(parameters, OtherGradients::Kind::kNone);
  Observation seen = watched_run(subject, {});
  const OtherGradients none(targets_of(seen.recording), OtherGradients::Kind::kNone);
  // The recording has to know all writes from the start, and it has no gradients to add to.
  if (!seen.audit.writes.empty() || none.any()) {
    seen = watched_run(subject, {.writes = std::move(seen.audit.writes)});
  }
  if (!difference_of_runs_after(subject, seen, runs).empty()) {
    // The first run may have made something that later runs find, such as a table that a module
    // keeps. The work of the step from now on counts.
    seen = watched_run(subject, {.writes = std::move(seen.audit.writes)});
    const std::string text = difference_of_next_runs(subject, seen, runs - 1);
    if (!text.empty()) throw InputError(text);
    add_arrivals(subject, seen);
  }
  refuse_gradients_read_as_parts(aside, seen.recording);
  refuse_gradients_read_as_parts(none, seen.recording);
  seen.recording.held = surroundings != nullptr && surroundings->holds_values();
  return seen;
}

Observation observe_run(const StepFunction& step, const Tensors& inputs, c10::Device device,
                        const std::vector<at::Tensor>& parameters, Scrutiny scrutiny,
                        const Audit& known, Surroundings* surroundings) {
  Observation seen;
  BeforeImages images;
  seen.recording = recorded_run({step, inputs, device, parameters, surroundings}, images, scrutiny,
                                seen.audit, &known);
  seen.recording.held = surroundings != nullptr && surroundings->holds_values();
  return seen;
}

bool repeats(const StepFunction& step, const Tensors& inputs, c10::Device device,
             const std::vector<at::Tensor>& parameters, Observation seen, int count,
             Surroundings* surroundings) {
  const Subject subject{step, inputs, device, parameters, surroundings};
  const OtherGradients aside(parameters, OtherGradients::Kind::kNone);
  const OtherGradients none(targets_of(seen.recording), OtherGradients::Kind::kNone);
  const size_t leaves = seen.recording.gradients.size(), literals = literals_of(seen.recording);
  try {
    return difference_of_next_runs(subject, seen, count).empty() &&
           seen.recording.gradients.size() == leaves && literals_of(seen.recording) == literals;
  } catch (const InputError&) {
    return false;  // observe_step() says why.
  }
}

}  // namespace reprise::runtime::internal::step
