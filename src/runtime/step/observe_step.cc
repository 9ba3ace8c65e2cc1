#include "runtime/step/observe_step.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/device/backward_queue.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/places.h"
#include "runtime/step/storage_bytes.h"
#include "runtime/state/random_state.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::internal::step {

using device::drain_backward_queue;
using state::RandomScope;

namespace {

// Puts gradients that were there before the step aside for a scope.
class OtherGradients {
 public:
  enum class Kind { kNone, kZeros };  // what stands in their place

  OtherGradients(const std::vector<at::Tensor>& leaves, Kind kind) {
    for (const at::Tensor& leaf : leaves) {
      before_.emplace_back(leaf, leaf.grad());
      leaf.mutable_grad() = at::Tensor();
    }
    if (kind == Kind::kNone) return;
    const at::NoGradGuard no_grad;
    for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::zeros_like(leaf);
  }
  ~OtherGradients() {
    // The loop goes backwards, because the first of two entries of one leaf has the gradient from
    // before.
    for (auto entry = before_.rbegin(); entry != before_.rend(); ++entry) {
      entry->first.mutable_grad() = entry->second;
    }
  }
  // Returns each leaf with the gradient that was put aside.
  const std::vector<std::pair<at::Tensor, at::Tensor>>& before() const { return before_; }
  OtherGradients(const OtherGradients&) = delete;
  OtherGradients& operator=(const OtherGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

std::string text_of(const c10::IValue& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

bool plain_number(const c10::IValue& value) {
  return value.isScalar() || value.isNone() || value.isIntList() || value.isDoubleList() ||
         value.isBoolList() || value.isString();
}

std::string at_place(const Call& call) {
  return call.place.empty() ? "" : fmt::format(" ({})", call.place);
}

const External* external_of(const Recording& recording, const TensorRef& ref) {
  if (ref.memory != Memory::kExternal) return nullptr;
  const External& external = recording.externals[static_cast<size_t>(ref.index)];
  return external.input >= 0 || !external.tensor.defined() ? nullptr : &external;
}

// Says whether two runs have the same host data in an argument. The host writes literals into
// tensors of its own, such as the numbers of Python in arithmetic with tensors. It may also make
// memory without PyTorch's allocator, as torch.from_numpy() of a new array does. Such memory is a
// literal, too, and `b` keeps a copy of it.
bool same_host_data(const Recording& a, const Argument& x, Recording& b, const Argument& y) {
  for (size_t i = 0; i < std::min(x.tensors.size(), y.tensors.size()); ++i) {
    const External* before = external_of(a, x.tensors[i]);
    const External* after = external_of(b, y.tensors[i]);
    if (before == nullptr || after == nullptr) continue;
    const c10::Storage &then = before->tensor.storage(), &now = after->tensor.storage();
    if (then.data() == now.data()) continue;  // Both runs read the same memory.
    if (copy_to_host(then) != copy_to_host(now)) return false;
    if (after->is_constant) continue;
    if (now.nbytes() > kLargestLiteral) return false;
    b.externals[static_cast<size_t>(y.tensors[i].index)] = literal_of(after->tensor);
  }
  return true;
}

[[noreturn]] void refuse_changes(const Call& call, size_t c, size_t argument,
                                 const std::string& change) {
  throw InputError(fmt::format(
      "the argument {} of operation {} ({}) {}: a captured step would keep the first one{}",
      call.op.schema().arguments()[argument].name(), c, call.name(), change, at_place(call)));
}

// Throws InputError if a host read gave two runs of the same step different numbers.
void compare_guards(const Call& x, const Call& y) {
  const HostRead before = host_read(x), now = host_read(y);
  if (before.expected == now.expected) return;
  throw InputError(fmt::format(
      "the step cannot be captured: {}, although the inputs and the random state are the same. It "
      "depends on something that the step itself changes, or that changes from run to run",
      difference_of(before, now.expected)));
}

// Throws InputError if the runs differ. Numbers are replayed as they were captured, so one that
// changes from run to run would be wrong. `b` keeps literals that it does not own yet.
void compare_calls(const Recording& a, Recording& b) {
  const size_t common = std::min(a.calls.size(), b.calls.size());
  for (size_t c = 0; c < common; ++c) {
    const Call &x = a.calls[c], &y = b.calls[c];
    if (x.op.operator_name() != y.op.operator_name()) {
      throw InputError(
          fmt::format("the step does not do the same work twice: operation {} was {}{} and then "
                      "{}{}; a captured step must not depend on what changes from step to step",
                      c, x.name(), at_place(x), y.name(), at_place(y)));
    }
    if (is_guard(x)) compare_guards(x, y);
    for (size_t i = 0; i < std::min(x.arguments.size(), y.arguments.size()); ++i) {
      if (!same_host_data(a, x.arguments[i], b, y.arguments[i])) {
        refuse_changes(y, c, i, "is a number that changes from run to run");
      }
      const c10::IValue &p = x.arguments[i].constant, &q = y.arguments[i].constant;
      if (!plain_number(p) || text_of(p) == text_of(q)) continue;
      refuse_changes(y, c, i,
                     fmt::format("changes from run to run, from {} to {}", text_of(p), text_of(q)));
    }
  }
  if (a.calls.size() != b.calls.size()) {
    const Call& more = a.calls.size() > common ? a.calls[common] : b.calls[common];
    throw InputError(
        fmt::format("the step does not do the same work twice: {} operations, then {}{}",
                    a.calls.size(), b.calls.size(), at_place(more)));
  }
}

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

// Records one run. Puts back everything that the run wrote outside the step, except gradients that
// it does not read.
Recording run_once(const Subject& subject, Audit* learn, const Audit* known) {
  const c10::Device device = subject.device;
  BeforeImages images;
  for (const at::Tensor& parameter : subject.parameters) {
    images.keep_place(parameter);
    images.keep_flag(parameter);
  }
  for (const at::Tensor& input : subject.inputs) {
    if (input.defined()) images.keep_flag(input);
  }
  const RandomScope random(device);
  // The cache of the caller's autocast may hold weights that an earlier run has cast.
  at::autocast::clear_cache();
  try {
    Recording recording = record(subject.step, subject.inputs, device, images, learn, known,
                                 subject.surroundings);
    for (const at::Tensor& tensor : images.flipped()) {
      recording.flags.push_back({.target = tensor,
                                 .input = position_of(tensor, subject.inputs),
                                 .wanted = tensor.requires_grad()});
    }
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
  const at::Tensor& external = run.externals[static_cast<size_t>(ref.index)].tensor;
  return external.defined() && external.storage().is_alias_of(gradient.storage());
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
void refuse_gradients_read_elsewhere(const OtherGradients& aside, const Recording& run) {
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

// Drops leaves that the last run made by a call that is no operation (.data). A leaf from before
// the step is the same tensor in both runs.
void drop_made_leaves(const Recording& before, Recording& last) {
  std::erase_if(last.gradients, [&](const LeafGradient& leaf) {
    return leaf.input < 0 && std::none_of(before.gradients.begin(), before.gradients.end(),
                                          [&](const LeafGradient& other) {
                                            return other.target.is_same(leaf.target);
                                          });
  });
}

// Returns the recording with what the step does to gradients that are there when it begins. A run
// without gradients does not show it, so one more run begins with gradients of zeros. Parameters
// that the step does not reach have one, too, because zero_grad() drops it.
Recording with_arrivals(const Subject& subject, Recording recording) {
  std::set<const void*> reached;
  for (const LeafGradient& leaf : recording.gradients) {
    reached.insert(leaf.target.unsafeGetTensorImpl());
  }
  for (const at::Tensor& parameter : subject.parameters) {
    const bool fresh = reached.insert(parameter.unsafeGetTensorImpl()).second;
    if (fresh) recording.gradients.push_back({.target = parameter});
  }
  const InputsWithFlags flags(recording);
  const OtherGradients zeros(targets_of(recording), OtherGradients::Kind::kZeros);
  std::vector<at::Tensor> given;
  for (const LeafGradient& leaf : recording.gradients) given.push_back(leaf.target.grad());
  std::vector<bool> at_first_read(given.size(), false);
  const AtFirstRead first_read([&] {
    for (size_t l = 0; l < given.size(); ++l) {
      at_first_read[l] = recording.gradients[l].target.grad().is_same(given[l]);
    }
  });
  Audit audit;
  Recording run;
  try {
    run = run_once(subject, &audit, nullptr);
  } catch (const InputError&) {
    // The step can be recorded without gradients, but not with them.
    for (LeafGradient& leaf : recording.gradients) leaf.arrival = Arrival::kReads;
    return recording;
  }
  note_flags_at_start(recording, run);
  for (size_t l = 0; l < given.size(); ++l) {
    LeafGradient& leaf = recording.gradients[l];
    const auto seen =
        std::find_if(run.gradients.begin(), run.gradients.end(),
                     [&](const LeafGradient& g) { return g.target.is_same(leaf.target); });
    // The run has not put back a gradient that no operation reads, so .grad shows whether it
    // stayed.
    const bool stayed = seen != run.gradients.end() ? lies_in(seen->gradient, given[l], run)
                                                    : leaf.target.grad().is_same(given[l]);
    leaf.arrival = arrival_at(given[l], stayed, leaf.gradient.memory != Memory::kNone, run);
    // A replay drops the gradient before it begins. Behind a host read, the step may be one that
    // keeps it.
    if (leaf.arrival == Arrival::kReplaced && at_first_read[l]) leaf.arrival = Arrival::kReads;
  }
  // A leaf without a gradient of its own that leaves an earlier gradient alone needs no delivery.
  std::erase_if(recording.gradients, [&](const LeafGradient& leaf) {
    return leaf.gradient.memory == Memory::kNone && leaf.arrival == Arrival::kAdded;
  });
  return recording;
}

}  // namespace

Recording observe_step(const StepFunction& step, const Tensors& inputs, c10::Device device,
                       const std::vector<at::Tensor>& parameters, Surroundings* surroundings) {
  const Subject subject{step, inputs, device, parameters, surroundings};
  // The step may drop gradients without an operation that shows it, so they are put aside here.
  const OtherGradients aside(parameters, OtherGradients::Kind::kNone);
  Audit first;
  Recording recording = run_once(subject, &first, nullptr);
  const OtherGradients none(targets_of(recording), OtherGradients::Kind::kNone);
  // The second audit runs without gradients and knows all writes from the start, so that its
  // numbers of calls and values are those of the recording.
  Audit audit;
  recording = run_once(subject, &audit, &first);
  audit.writes.insert(first.writes.begin(), first.writes.end());
  Recording last = run_once(subject, nullptr, &audit);
  compare_calls(recording, last);
  drop_made_leaves(recording, last);
  refuse_gradients_read_elsewhere(aside, last);
  refuse_gradients_read_elsewhere(none, last);
  return with_arrivals(subject, std::move(last));
}

}  // namespace reprise::runtime::internal::step
