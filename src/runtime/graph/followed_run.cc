#include "runtime/graph/followed_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/graph/step_state.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/lockstep/shells.h"
#include "runtime/lockstep/words.h"
#include "runtime/step/places.h"
#include "runtime/step/replay_scope.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::graph {

using lockstep::HeldShell;
using step::Argument;
using step::Call;
using step::Recording;
using step::Work;
using step::Works;

namespace {

constexpr size_t kNoEntry = std::numeric_limits<size_t>::max();

bool same_arguments(const Call& a, const Call& b) {
  return std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    [](const Argument& x, const Argument& y) {
                      return x.kind == y.kind && x.tensors == y.tensors &&
                             lockstep::same_constant(x.constant, y.constant);
                    });
}

bool same_call(const Call& a, const Call& b) {
  return a.op.operator_name() == b.op.operator_name() && a.outputs == b.outputs &&
         same_arguments(a, b);
}

}  // namespace

bool begin_alike(const Recording& a, const Recording& b, size_t calls, size_t left_out) {
  if (a.calls.size() < calls || b.calls.size() < calls || a.left_out.size() < left_out ||
      b.left_out.size() < left_out) {
    return false;
  }
  for (size_t c = 0; c < calls; ++c) {
    if (!same_call(a.calls[c], b.calls[c])) return false;
  }
  for (size_t c = 0; c < left_out; ++c) {
    const step::LeftOut &x = a.left_out[c], &y = b.left_out[c];
    if (x.before != y.before || x.failed != y.failed || !same_call(x.call, y.call)) return false;
  }
  return true;
}

FollowedRun::FollowedRun(StepState& state, PlanRun& run, const Tensors& inputs,
                         const state::RandomState& random, std::optional<int64_t> limit)
    : state_(state), run_(run), inputs_(inputs), random_(random), limit_(limit) {
  state_.captured().replay.use({});
  look_at_plan();
}

void FollowedRun::look_at_plan() {
  const size_t calls = state_.recording().calls.size();
  entry_of_.assign(calls, kNoEntry);
  as_it_is_.assign(calls, false);
  std::vector<bool> otherwise(calls, false);
  const auto& works = state_.captured().program.lowered.works;
  const auto& entries = state_.outcome().program->entries();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (entries[e].kind != ActionKind::kRun) continue;
    const auto& of_op = works[entries[e].run.op];
    const auto first = static_cast<size_t>(of_op[0]);
    if (first >= calls) continue;
    if (of_op[entries[e].run.variant] != of_op[0]) {
      otherwise[first] = true;
      continue;
    }
    as_it_is_[first] = true;
    entry_of_[first] = std::min(entry_of_[first], e);
  }
  for (size_t c = 0; c < calls; ++c) {
    if (otherwise[c] || state_.captured().program.step.works.rerun[c] >= 0) as_it_is_[c] = false;
  }
}

void FollowedRun::call() {
  lockstep::Followed followed = lockstep::follow(state_.recording(), state_.step, inputs_,
                                                 parameters_of(state_.options), *this);
  for (const at::Tensor& output : followed.outputs) {
    returned_.push_back(output.defined() ? output.detach() : output);
  }
  held_ = std::move(followed.held);
}

Tensors FollowedRun::give(const Tensors& outputs) {
  const Recording& recording = state_.recording();
  for (const HeldShell& shell : held_) {
    if (shell.storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr)
      continue;
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
  const size_t entry = entry_of_.at(call);
  if (entry == kNoEntry) throw InternalError("a plan leaves out what the host reads");
  run_.advance(entry + 1);
}

c10::IValue FollowedRun::number(size_t guard) {
  advance_through(guard);
  return given_.of(state_.recording().calls[guard]);
}

void FollowedRun::expect(size_t guard) { advance_through(guard); }

c10::Storage FollowedRun::copied(size_t call, int32_t value) {
  advance_through(call);
  return state_.captured().replay.storage_of(value);
}

bool FollowedRun::use(size_t call, size_t argument, const c10::IValue& number) {
  if (!as_it_is_[call]) return false;
  state_.captured().replay.changes().numbers.insert_or_assign({call, argument}, number);
  return true;
}

bool FollowedRun::use(size_t external, const at::Tensor& tensor, int64_t later) {
  const auto is_it = [&](int32_t e) { return e == static_cast<int32_t>(external); };
  for (const Call& call : state_.recording().calls) {
    if (std::any_of(call.effects.begin(), call.effects.end(), is_it)) return false;
  }
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
  const step::Circumstances here(inputs_, state_.options);
  const Changes changes = state_.captured().replay.changes();
  const auto goes_on = [&](const Outcome& outcome) {
    return !tried_.contains(outcome.number) && outcome.plan &&
           begin_alike(state_.recording(), outcome.captured->program.step.recording, calls,
                       left_out) &&
           outcome.difference(here).empty();
  };
  const auto& all = state_.outcomes.all();
  const auto found = std::find_if(all.begin(), all.end(), goes_on);
  if (found == all.end()) return nullptr;
  take_back();
  state_.captured().replay.use({});
  state_.outcomes.bring(found->number);
  state_.renew_memory();
  state_.captured().effects.save();
  state_.captured().replay.use(changes);
  look_at_plan();
  return &state_.recording();
}

// Takes back what the replay has done so far.
void FollowedRun::take_back() {
  run_.abandon();
  if (state_.homes) state_.homes->undo({});
  random_.restore();
  state_.captured().effects.restore();
}

void FollowedRun::leave(size_t calls, const std::vector<HeldShell>& shells,
                        const std::string& difference) {
  difference_ = difference;
  take_back();
  if (state_.homes) {
    state_.homes->fetch(HomedKind::kState);
    state_.homes->fetch(HomedKind::kParameter);
  }
  reset_peak(state_.recording().device);
  limit_behind_.emplace(limit_);
  walk(calls, shells);
}

// Runs calls as plain training does. A value stays for the calls that read it, and for the program.
void FollowedRun::walk(size_t calls, const std::vector<HeldShell>& shells) {
  const c10::impl::ForceDispatchKeyGuard as_called(run_.keys());
  const step::ReplayScope scope;
  const Works& works = state_.captured().program.step.works;
  const Recording& recording = state_.recording();
  Replay& replay = state_.captured().replay;
  std::vector<size_t> last_use(recording.values.size(), 0);
  for (size_t c = 0; c < calls; ++c) {
    for (const int32_t v : values_read(works.all[c])) last_use[v] = c;
    for (const int32_t v : values_written(works.all[c])) last_use[v] = std::max(last_use[v], c);
  }
  for (const HeldShell& shell : shells) last_use[shell.value] = calls;
  const Changes changes = replay.changes();
  replay.begin(inputs_);
  for (size_t c = 0; c < calls; ++c) {
    if (is_guard(recording.calls[c])) continue;
    const Work& work = works.all[c];
    replay.invoke(work);
    replay.keep_results(work);
    for (const auto& values : {values_read(work), values_written(work)}) {
      for (const int32_t v : values) {
        if (last_use[v] == c) replay.set(static_cast<size_t>(v), {});
      }
    }
  }
  for (const HeldShell& shell : shells) {
    const c10::Storage& bytes = replay.storage_of(shell.value);
    const bool has_bytes =
        shell.storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
    if (bytes && !has_bytes) lockstep::fill(shell.storage, bytes);
  }
  replay.clear();
}

}  // namespace reprise::runtime::internal::graph
