#include "runtime/graph/followed_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/graph/step_state.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/lockstep/shells.h"
#include "runtime/step/places.h"
#include "runtime/step/replay_scope.h"
#include "runtime/step/same_constant.h"
#include "runtime/step/storage_bytes.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::graph {

using lockstep::HeldShell;
using lockstep::Leaving;
using step::Argument;
using step::Call;
using step::Recording;
using step::Work;
using step::Works;

namespace {

constexpr size_t kNoEntry = std::numeric_limits<size_t>::max();
constexpr size_t kSmallState = 64;  // bytes

bool same_arguments(const Call& a, const Call& b) {
  return std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    [](const Argument& x, const Argument& y) {
                      return x.kind == y.kind && x.tensors == y.tensors &&
                             step::same_constant(x.constant, y.constant);
                    });
}

bool same_call(const Call& a, const Call& b) {
  return a.op.operator_name() == b.op.operator_name() && a.outputs == b.outputs &&
         same_arguments(a, b);
}

bool writes(const Recording& recording, size_t external) {
  const auto is_it = [&](int32_t e) { return e == static_cast<int32_t>(external); };
  return std::any_of(recording.calls.begin(), recording.calls.end(), [&](const Call& call) {
    return std::any_of(call.effects.begin(), call.effects.end(), is_it);
  });
}

// Says whether two externals that nothing has replaced are the same memory, or of one content.
bool is_same_memory(const step::External& a, const step::External& b) {
  if (a.input >= 0 || b.input >= 0) return a.input == b.input;
  const c10::Storage &x = a.tensor.storage(), &y = b.tensor.storage();
  if (x.unsafeGetStorageImpl() == y.unsafeGetStorageImpl()) return true;
  return a.is_constant && b.is_constant && x.nbytes() == y.nbytes() &&
         step::copy_to_host(x) == step::copy_to_host(y);
}

// Returns the values that the step returns or leaves as gradients.
std::vector<int32_t> results_of(const Recording& recording) {
  std::vector<int32_t> all;
  const auto add = [&](const step::TensorRef& ref) {
    if (ref.memory == step::Memory::kValue) step::add_once(all, ref.index);
  };
  for (const step::TensorRef& output : recording.outputs) add(output);
  for (const step::LeafGradient& leaf : recording.gradients) add(leaf.gradient);
  return all;
}

// Says whether a plan has a place for what has changed in this run.
bool can_use(const Outcome& outcome, const Changes& changes) {
  const CallsOfPlan calls = calls_of(outcome);
  const Recording& recording = outcome.captured->program.step.recording;
  return std::all_of(changes.numbers.begin(), changes.numbers.end(),
                     [&](const auto& change) { return calls.as_it_is[change.first.first]; }) &&
         std::none_of(changes.externals.begin(), changes.externals.end(),
                      [&](const auto& change) { return writes(recording, change.first); });
}

}  // namespace

bool begin_alike(const Recording& a, const Recording& b, size_t calls, size_t left_out,
                 const std::function<bool(size_t external)>& is_same) {
  if (a.calls.size() < calls || b.calls.size() < calls || a.left_out.size() < left_out ||
      b.left_out.size() < left_out) {
    return false;
  }
  for (size_t c = 0; c < calls; ++c) {
    if (!same_call(a.calls[c], b.calls[c])) return false;
  }
  for (size_t c = 0; c < left_out; ++c) {
    const step::LeftOut &x = a.left_out[c], &y = b.left_out[c];
    if (x.before != y.before || x.failed != y.failed || x.same_as != y.same_as ||
        !same_call(x.call, y.call)) {
      return false;
    }
  }
  const size_t externals = step::first_calls(a, calls, left_out).externals.size();
  for (size_t e = 0; e < externals; ++e) {
    if (!is_same(e)) return false;
  }
  return true;
}

void note_dropped(Recording& recording, const std::vector<at::Tensor>& leaves) {
  for (step::LeafGradient& leaf : recording.gradients) {
    if (leaf.gradient.memory == step::Memory::kExternal) continue;  // It stays.
    const auto is_it = [&](const at::Tensor& seen) { return seen.is_same(leaf.target); };
    if (std::any_of(leaves.begin(), leaves.end(), is_it)) leaf.arrival = step::Arrival::kReplaced;
  }
}

CallsOfPlan calls_of(const Outcome& outcome) {
  const StepProgram& program = outcome.captured->program;
  const size_t calls = program.step.recording.calls.size();
  CallsOfPlan found{std::vector<size_t>(calls, kNoEntry), std::vector<bool>(calls, false)};
  std::vector<bool> otherwise(calls, false);
  const auto& entries = outcome.program->entries();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (entries[e].kind != ActionKind::kRun) continue;
    const auto& works = program.lowered.works[entries[e].run.op];
    const auto first = static_cast<size_t>(works[0]);
    if (first >= calls) continue;
    const int32_t work = works[entries[e].run.variant];
    // A re-run of a batch norm takes the numbers of the call.
    if (work == program.step.works.rerun[first]) continue;
    if (work != works[0]) {
      otherwise[first] = true;
      continue;
    }
    found.as_it_is[first] = true;
    found.entries[first] = std::min(found.entries[first], e);
  }
  for (size_t c = 0; c < calls; ++c) {
    if (otherwise[c]) found.as_it_is[c] = false;
  }
  return found;
}

FollowedRun::FollowedRun(StepState& state, PlanRun& run, const Tensors& inputs,
                         const state::RandomState& random, std::optional<int64_t> limit)
    : state_(state),
      run_(run),
      inputs_(inputs),
      random_(random),
      limit_(limit),
      level_(state.level_without(inputs)),
      here_(inputs, state.options),
      calls_(calls_of(state.outcome())) {
  state_.captured().replay.use({});
}

void FollowedRun::call() {
  lockstep::Followed followed;
  std::exception_ptr thrown;
  try {
    followed = lockstep::follow(state_.recording(), state_.step, inputs_,
                                parameters_of(state_.options), *this);
    if (rest_) learn(followed);
    if (within_) within_->end();
  } catch (...) {
    thrown = within_ ? within_->reason_of(std::current_exception()) : std::current_exception();
  }
  rest_.reset();
  within_.reset();
  if (thrown) std::rethrow_exception(thrown);
  for (const at::Tensor& output : followed.outputs) {
    returned_.push_back(output.defined() ? output.detach() : output);
  }
  held_ = std::move(followed.held);
}

void FollowedRun::learn(const lockstep::Followed& followed) {
  try {
    learned_ = rest_->finish(followed.outputs);
    note_dropped(*learned_, followed.seen);
  } catch (const InputError&) {  // It cannot be replayed, and it has run.
  }
}

void FollowedRun::give_gradients(std::vector<Delivery>& gradients) {
  for (const HeldShell& shell : held_) {
    const auto is_output = [&](const step::TensorRef& ref) {
      return ref.memory == step::Memory::kValue && ref.index == shell.value;
    };
    const auto& outputs = state_.recording().outputs;
    // One reference is that of the list.
    if (shell.storage.use_count() <= 1) continue;
    if (std::any_of(outputs.begin(), outputs.end(), is_output)) continue;
    bool given = false;
    for (Delivery& next : gradients) {
      if (next.value != shell.value) continue;
      const step::Geometry geometry = step::geometry_of(next.gradient);
      if (!std::exchange(given, true)) {
        Tensors moved{next.gradient};
        state_.memory.move_out(moved);
        lockstep::fill(shell.storage, moved[0].storage());
      }
      next.gradient = step::tensor_on(shell.storage, geometry);
    }
  }
}

Tensors FollowedRun::give(const Tensors& outputs) {
  const Recording& recording = state_.recording();
  for (const HeldShell& shell : held_) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (recording.outputs[i].memory != step::Memory::kValue) continue;
      if (recording.outputs[i].index != shell.value) continue;
      lockstep::fill(shell.storage, outputs[i].storage());
      break;
    }
  }
  return std::move(returned_);
}

void FollowedRun::advance_through(size_t call) {
  const size_t entry = calls_.entries.at(call);
  if (entry == kNoEntry) throw InternalError("a plan leaves out what the host reads");
  // The function may still do something else, and then all of this is taken back.
  const StepProgram& program = state_.captured().program;
  const auto& entries = state_.outcome().program->entries();
  for (size_t e = run_.position(); e <= entry; ++e) {
    if (entries[e].kind != ActionKind::kRun) continue;
    const int32_t work = program.lowered.works[entries[e].run.op][entries[e].run.variant];
    state_.captured().effects.save_before(program.step.works.all[work]);
  }
  run_.advance(entry + 1);
}

c10::IValue FollowedRun::number(size_t guard) {
  const Call& call = state_.recording().calls[guard];
  if (auto number = number_of_state(call)) return *std::move(number);
  advance_through(guard);
  return given_.of(call);
}

// An optimizer counts its steps in small tensors, which it writes in their place, and reads the
// counts. The replay need not advance through the whole backward for them: this returns the number
// if the calls that write the tensor read nothing else but what the step leaves alone.
std::optional<c10::IValue> FollowedRun::number_of_state(const Call& guard) {
  const Recording& recording = state_.recording();
  const step::TensorRef& read = guard.arguments.at(0).tensors.at(0);
  if (guard.arguments.size() != 2 || read.memory != step::Memory::kExternal) return std::nullopt;
  const at::Tensor& state = recording.externals[read.index].tensor;
  if (!state.defined() || !state.is_cpu() || state.storage().nbytes() > kSmallState) {
    return std::nullopt;
  }
  const Changes& changes = state_.captured().replay.changes();
  const c10::Storage copy = step::literal_of(state).tensor.storage();
  const auto storage_of = [&](int32_t e) -> std::optional<c10::Storage> {
    if (e == read.index) return copy;
    const auto other = changes.externals.find(e);
    if (other != changes.externals.end()) return other->second.first;
    const step::External& external = recording.externals[e];
    if (external.input >= 0 || writes(recording, e)) return std::nullopt;
    return external.tensor.storage();
  };
  const c10::impl::ForceDispatchKeyGuard as_called(run_.keys());
  const step::ReplayScope scope;
  const at::NoGradGuard no_grad;
  for (size_t c = 0; &recording.calls[c] != &guard; ++c) {
    const Call& call = recording.calls[c];
    if (std::find(call.effects.begin(), call.effects.end(), read.index) == call.effects.end()) {
      continue;
    }
    if (calls_.entries[c] < run_.position()) continue;  // The replay has done it.
    torch::jit::Stack stack;
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      const Argument& argument = call.arguments[a];
      if (argument.kind == step::ArgumentKind::kConstant) {
        const auto changed = changes.numbers.find({c, a});
        stack.push_back(changed == changes.numbers.end() ? argument.constant : changed->second);
        continue;
      }
      const auto& tensors = argument.tensors;
      if (argument.kind != step::ArgumentKind::kTensor ||
          tensors.at(0).memory != step::Memory::kExternal) {
        return std::nullopt;
      }
      const auto storage = storage_of(tensors[0].index);
      if (!storage) return std::nullopt;
      stack.emplace_back(step::tensor_on(*storage, tensors[0].geometry));
    }
    call.op.callBoxed(stack);
  }
  return at::_local_scalar_dense(step::tensor_on(copy, read.geometry));
}

void FollowedRun::expect(size_t guard) { advance_through(guard); }

c10::Storage FollowedRun::copied(size_t call, int32_t value) {
  advance_through(call);
  return state_.captured().replay.storage_of(value);
}

bool FollowedRun::use(size_t call, size_t argument, const c10::IValue& number) {
  if (!calls_.as_it_is[call]) return false;
  state_.captured().replay.changes().numbers.insert_or_assign({call, argument}, number);
  return true;
}

bool FollowedRun::use(size_t external, const at::Tensor& tensor, int64_t later) {
  if (writes(state_.recording(), external)) return false;
  // The program may write small host memory again before the plan reads it.
  const bool copied =
      tensor.device().is_cpu() && tensor.storage().nbytes() <= step::kLargestLiteral;
  const c10::Storage storage =
      copied ? step::literal_of(tensor).tensor.storage() : tensor.storage();
  state_.captured().replay.changes().externals.insert_or_assign(external,
                                                                std::pair(storage, later));
  return true;
}

const Recording* FollowedRun::other(size_t calls, size_t left_out) {
  tried_.insert(state_.outcome().number);
  const Changes changes = state_.captured().replay.changes();
  const auto fits_budget = [&](const Outcome& outcome) {
    const Bytes more = level_ - outcome.placed.graph.fixed;
    return outcome.own_peak + more <= outcome.plan->result.budget;
  };
  const auto goes_on = [&](const Outcome& outcome) {
    if (tried_.contains(outcome.number) || !outcome.plan || !fits_budget(outcome)) return false;
    const Recording &now = state_.recording(), &next = outcome.captured->program.step.recording;
    const auto is_same = [&](size_t e) {
      return changes.externals.contains(e) || is_same_memory(now.externals[e], next.externals[e]);
    };
    return begin_alike(now, next, calls, left_out, is_same) && outcome.difference(here_).empty() &&
           can_use(outcome, changes);
  };
  const auto& all = state_.outcomes.all();
  const auto found = std::find_if(all.begin(), all.end(), goes_on);
  if (found == all.end()) return nullptr;
  take_back();
  state_.captured().replay.use({});
  state_.put_memory_aside();
  state_.outcomes.bring(found->number);
  state_.take_memory_up();
  state_.outcome().drift = level_ - state_.graph().fixed;
  state_.captured().effects.save(inputs_);
  state_.captured().replay.use(changes);
  calls_ = calls_of(state_.outcome());
  return &state_.recording();
}

// Takes back what the replay has done so far.
void FollowedRun::take_back() {
  run_.abandon();
  if (state_.homes) state_.homes->undo({});
  random_.restore();
  state_.captured().effects.restore(inputs_);
}

void FollowedRun::leave(const Leaving& leaving) {
  difference_ = leaving.difference;
  take_back();
  if (state_.homes) {
    state_.homes->fetch(HomedKind::kState);
    state_.homes->fetch(HomedKind::kParameter);
  }
  reset_peak(state_.recording().device);
  go_on_within_budget();
  walk(leaving);
  if (!leaving.adds) record_rest(leaving);
  if (leaving.random_at) set_random_state(*leaving.random_at);
}

// Records what follows, so that the whole is known. It does not see a backward that has begun.
void FollowedRun::record_rest(const Leaving& leaving) {
  if (torch::autograd::get_current_node() != nullptr) return;
  const Changes& changes = state_.captured().replay.changes();
  Recording begun = step::first_calls(state_.recording(), leaving.calls, leaving.left_out);
  std::vector<std::pair<c10::Storage, step::TensorRef>> places;
  for (const HeldShell& shell : leaving.shells) {
    places.emplace_back(shell.storage, step::TensorRef{step::Memory::kValue, shell.value, {}});
  }
  for (size_t e = 0; e < begun.externals.size(); ++e) {
    const step::External& external = begun.externals[e];
    const auto other = changes.externals.find(e);
    const c10::Storage storage = other != changes.externals.end() ? other->second.first
                                 : external.input >= 0 ? inputs_[external.input].storage()
                                                       : external.tensor.storage();
    places.emplace_back(storage,
                        step::TensorRef{step::Memory::kExternal, static_cast<int32_t>(e), {}});
  }
  try {
    rest_.emplace(std::move(begun), places, inputs_, state_.learning.known,
                  within_ ? &*within_ : nullptr);
  } catch (const InputError&) {  // Another thread records.
  }
}

// Online mode does not see a backward that has begun already.
void FollowedRun::go_on_within_budget() {
  const c10::Device device = state_.recording().device;
  const CaptureOptions options = state_.within_budget(device);
  const bool in_backward = torch::autograd::get_current_node() != nullptr;
  if (!limit_ || in_backward || options.budget.unlimited() || !online::works_on(device)) {
    limit_behind_.emplace(limit_, device);
    return;
  }
  within_.emplace(Budget(Bytes(*limit_)), device);
  within_->begin();
}

Tensors FollowedRun::finish_plainly() {
  take_back();
  reset_peak(state_.recording().device);
  go_on_within_budget();
  Leaving whole;
  whole.calls = state_.recording().calls.size();
  walk(whole);
  Tensors outputs = state_.outputs_now();
  if (within_) within_->end();
  within_.reset();
  limit_behind_.reset();
  return outputs;
}

// Runs calls as plain training does. A value stays for the calls that read it, and for the program.
void FollowedRun::walk(const Leaving& leaving) {
  const c10::impl::ForceDispatchKeyGuard as_called(run_.keys());
  const step::ReplayScope scope;
  const size_t calls = leaving.calls;
  const Works& works = state_.captured().program.step.works;
  const Recording& recording = state_.recording();
  Replay& replay = state_.captured().replay;
  std::vector<size_t> last_use(recording.values.size(), 0);
  // By the first version of a value: the last one that these calls make.
  std::map<int32_t, int32_t> last_version;
  const auto first_version = [&](int32_t value) {
    while (recording.values[value].previous >= 0) value = recording.values[value].previous;
    return value;
  };
  for (size_t c = 0; c < calls; ++c) {
    for (const int32_t v : values_read(works.all[c])) last_use[v] = c;
    for (const int32_t v : values_written(works.all[c])) {
      last_use[v] = std::max(last_use[v], c);
      last_version[first_version(v)] = v;
    }
  }
  // A storage has the bytes of a value from its first version on. What a checkpoint has made again may
  // be an earlier version, or the program may have the value twice: that is copied.
  std::map<int32_t, c10::Storage> homes;
  std::map<int32_t, std::vector<c10::Storage>> copies;  // by value
  for (const HeldShell& shell : leaving.shells) {
    const int32_t first = first_version(shell.value);
    if (shell.value == last_version[first] && homes.emplace(first, shell.storage).second) {
      last_use[shell.value] = calls;
    } else {
      copies[shell.value].push_back(shell.storage);
    }
  }
  const bool is_whole = calls == recording.calls.size() && leaving.shells.empty();
  if (is_whole) {
    for (const int32_t v : results_of(recording)) last_use[v] = calls;
  }
  const auto note_random_state = [&](size_t call) {
    if (leaving.random_states.contains(call)) random_states_.emplace(call, recording.device);
  };
  replay.begin(inputs_);
  for (size_t c = 0; c < calls; ++c) {
    note_random_state(c);
    if (is_guard(recording.calls[c])) continue;
    const Work& work = works.all[c];
    replay.invoke(work);
    give_homes(work, homes);
    for (const int32_t v : values_written(work)) {
      for (const c10::Storage& shell : copies[v]) give_copy(v, shell);
    }
    for (const auto& values : {values_read(work), values_written(work)}) {
      for (const int32_t v : values) {
        if (last_use[v] == c) replay.set(static_cast<size_t>(v), {});
      }
    }
  }
  note_random_state(calls);
  if (!is_whole) replay.clear();
}

// Makes the results values. Those whose storages the program holds lie there.
void FollowedRun::give_homes(const Work& work, const std::map<int32_t, c10::Storage>& shells) {
  Replay& replay = state_.captured().replay;
  replay.keep_results(work);
  for (const Work::Made& made : work.made) {
    const auto shell = shells.find(made.value);
    if (shell == shells.end()) continue;
    give(replay.storage_of(made.value), shell->second);
    replay.set(static_cast<size_t>(made.value), shell->second);
  }
}

// Gives a shell a copy of a value.
void FollowedRun::give_copy(int32_t value, const c10::Storage& shell) {
  const c10::Storage& from = state_.captured().replay.storage_of(value);
  const step::Geometry whole{
      .sizes = {static_cast<int64_t>(from.nbytes())}, .strides = {1}, .dtype = at::kByte};
  give(step::tensor_on(from, whole).clone().storage(), shell);
}

// Gives a shell the bytes of a storage.
void FollowedRun::give(const c10::Storage& bytes, const c10::Storage& shell) {
  if (within_) {
    within_->move_home(bytes, shell);
  } else {
    lockstep::fill(shell, bytes);
  }
}

}  // namespace reprise::runtime::internal::graph
