#include "runtime/online/session.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/step/operators.h"

namespace reprise::runtime::internal::online {

using device::LimitScope;
using device::RoomMakerScope;

namespace {

constexpr uint64_t kSweepEach = 256;  // operations

// Autograd's kernels of operators in place clone the old values that their backward needs. All else
// that is called below a leaf is the leaf's own work.
bool is_clone_by_autograd(const at::RecordFunction& event) {
  return std::strcmp(event.name(), "aten::clone") == 0 &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
}

// Says whether code of Python or of a function transform takes operators over. It calls others,
// which are recorded in their place.
bool is_taken_over() {
  constexpr c10::DispatchKeySet kTakers({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                         c10::DispatchKey::FuncTorchDynamicLayerFrontMode});
  return c10::impl::tls_local_dispatch_key_set().included_.has_any(kTakers);
}

bool is_leaf(const OperatorFacts& facts, c10::Device device) {
  if (facts.transparent || is_taken_over()) return false;
  return !at::autocast::is_autocast_enabled(device.type()) ||
         !step::is_transparent(facts.op, device);
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown kind";
  }
}

}  // namespace

thread_local Session* Session::active_ = nullptr;

void require_bytes(const Budget& budget, const char* whose) {
  if (!budget.relative()) return;
  throw InputError(std::string("a budget of ") + whose +
                   " is a number of bytes, such as \"700 MiB\": a share is one of plain "
                   "training's peak, which is not known before the step");
}

bool works_on(c10::Device device) {
  return device::kStoragesTellTouches && device::has_limits(device);
}

void check_options(const OnlineOptions& options, const char* whose) {
  if constexpr (!device::kStoragesTellTouches) {
    throw InputError(std::string(whose) +
                     " needs LibTorch 2.13 or newer, in which a storage tells when its memory is "
                     "asked for");
  }
  if (!device::has_limits(options.device)) {
    throw InputError(fmt::format(
        "{} does not work on {}: the runtime has no front before the allocator of this device, "
        "which it has in a build for CUDA",
        whose, options.device.str()));
  }
  require_bytes(options.budget, whose);
  if (options.smallest.count() < 0) {
    throw InputError("the smallest size of a tensor that online mode evicts is negative");
  }
  if (options.plan_after < 0 || options.plans < 0 || options.time_limit < Nanos() ||
      !(options.planning_share >= 0)) {
    throw InputError(
        "plan_after, plans, the time limit and planning_share of online mode are not negative");
  }
}

Session::Session(const OnlineOptions& options, const Heuristic& heuristic, bool undoes)
    : device_(options.device),
      scorer_(heuristic),
      values_(&Session::on_touch),
      remaker_(values_, scorer_, clock_, device_),
      evictor_(values_, scorer_, remaker_, clock_, options.smallest.count(), device_),
      smallest_(options.smallest.count()) {
  if (undoes) undo_.emplace(device_);
  if (!options.budget.unlimited()) {
    const int64_t budget = options.budget.resolve(Bytes(0)).count();
    const int64_t live = memory_count(device_).live;
    if (live > budget) {
      throw BudgetError("the budget of " + std::to_string(budget) +
                            " bytes is exceeded before the "
                            "step in online mode begins: " +
                            std::to_string(live) + " bytes are live",
                        budget, live, 0);
    }
    limit_.emplace(budget, device_);
  }
  if (!device_.is_cpu()) one_thread_.emplace();
  room_.emplace(*this);
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  active_ = this;
}

Session::~Session() { close(); }

void Session::follow(OnlinePlans plans) {
  follower_.emplace(std::move(plans), values_, remaker_, smallest_, device_);
  evictor_.follow(&*follower_);
}

std::optional<Followed> Session::take_followed() {
  if (!follower_) return std::nullopt;
  return follower_->take();
}

void Session::close() {
  if (!callback_) return;
  at::removeCallback(*std::exchange(callback_, std::nullopt));
  active_ = nullptr;
  room_.reset();
  limit_.reset();
  one_thread_.reset();
}

std::unique_ptr<at::ObserverContext> Session::on_start(const at::RecordFunction& event) {
  Session* const session = active_;
  if (session == nullptr || session->busy_) return nullptr;
  if (session->inside_leaf_ && !is_clone_by_autograd(event)) return nullptr;
  const Busy busy(*session);
  std::unique_ptr<ObservedCall> call;
  try {
    const OperatorFacts* const facts = facts_of(event, session->device_);
    if (facts == nullptr) return nullptr;
    call = std::make_unique<ObservedCall>(*facts, session->device_);
    call->within_leaf = session->inside_leaf_;
    call->leaf = is_leaf(*facts, session->device_);
    if (call->leaf) session->running_ = facts;
    session->begin(*call, event);
  } catch (...) {
    if (!session->failure_) session->failure_ = std::current_exception();
    session->broken_ = session->broken_ || !call || !call->noted;
    if (call) session->fail(*call);
  }
  if (call && call->leaf) session->inside_leaf_ = true;
  return call;
}

void Session::on_end(const at::RecordFunction& event, at::ObserverContext* context) {
  Session* const session = active_;
  if (context == nullptr || session == nullptr) return;
  auto& call = static_cast<ObservedCall&>(*context);
  session->inside_leaf_ = call.within_leaf;
  const Busy busy(*session);
  try {
    session->end(call, event);
  } catch (...) {
    if (!session->failure_) session->failure_ = std::current_exception();
    session->broken_ = true;
  }
}

void Session::begin(ObservedCall& call, const at::RecordFunction& event) {
  if (++events_ % kSweepEach == 0) values_.sweep();
  note_operands(call, event, values_, undo_ ? &*undo_ : nullptr);
  if (follower_) follower_->begin(call);
  make_operands(call);
  // The call will overwrite bytes that cannot be made again. Values that depend on these bytes are
  // made now.
  for (const ValuePtr& value : call.written) {
    if (!value->can_be_made() && !value->blank_call) freeze_dependents(value);
  }
  if (follower_) follower_->kernel_begins(call);
}

// The operands are not pinned meanwhile: what can be made again may go once more while the others are
// made, if nothing else is left to evict.
void Session::make_operands(ObservedCall& call) {
  const auto is_there = [](const ValuePtr& value) { return value->present(); };
  if (std::all_of(call.pinned.begin(), call.pinned.end(), is_there)) return;
  for (const ValuePtr& value : call.pinned) values_.unpin(*value);
  try {
    remaker_.make_all(call.pinned);
  } catch (...) {
    for (const ValuePtr& value : call.pinned) values_.pin(*value);
    throw;
  }
  for (const ValuePtr& value : call.pinned) values_.pin(*value);
}

// Lets the kernel throw at whatever it reads or writes, so that nothing wrong is computed.
void Session::fail(ObservedCall& call) {
  call.poisoned = true;
  try {
    const std::string reason = kMissingOperand + text_of(failure_);
    for (const ValuePtr& value : call.pinned) Values::poison(*value, reason);
  } catch (...) {
    broken_ = true;
  }
}

void Session::end(ObservedCall& call, const at::RecordFunction& event) {
  if (follower_) follower_->kernel_ended(call);
  release_operands(call, values_);
  note_results(call, event, values_, clock_, counts_);
  if (follower_) follower_->end(call);
}

std::exception_ptr Session::reason_of(const std::exception_ptr& thrown) const {
  const bool of_missing_operand = text_of(thrown).find(kMissingOperand) != std::string::npos;
  return of_missing_operand && failure_ ? failure_ : thrown;
}

void Session::need(const ValuePtr& value) {
  const Busy busy(*this);
  remaker_.make(value);
  values_.pin(*value);
}

// Makes all that lives and that needs the bytes of this value, and lets it stay.
void Session::freeze_dependents(const ValuePtr& value) {
  std::vector<ValuePtr> dependents, open{value};
  std::unordered_set<const Value*> seen;
  while (!open.empty()) {
    const ValuePtr from = std::move(open.back());
    open.pop_back();
    for_each_made_from(*from, [&](const CallPtr&, const ValuePtr& made) {
      if (!made->can_be_made() || !seen.insert(made.get()).second) return;
      if (made->current && !made->home.expired()) dependents.push_back(made);
      open.push_back(made);
    });
  }
  remaker_.make_all(dependents);
  for (const ValuePtr& dependent : dependents) values_.hold(*dependent);
}

// Code outside of operators takes the pointer of a storage, and may write from now on.
void Session::on_touch(c10::StorageImpl* storage) {
  Session* const session = active_;
  if (session == nullptr) return;
  if (const ValuePtr value = session->values_.find(storage)) session->touch(value);
}

void Session::touch(const ValuePtr& value) {
  value->armed = false;
  if (busy_) return;
  const Busy busy(*this);
  if (!value->can_be_made() && !value->blank_call) freeze_dependents(value);
  const ValuePtr next = values_.renew(value);
  next->shared = true;
  values_.hold(*next);
}

void Session::settle() {
  const Busy busy(*this);
  if (broken_) std::rethrow_exception(failure_);
  values_.sweep();
  if (follower_) follower_->finish(evictor_.evictions());
  remaker_.make_all(values_.held());  // All of them have to be there at the end, and at once.
}

std::string Session::make_room(int64_t bytes) {
  if (broken_) return "online mode has stopped evicting, because something failed before";
  const Busy busy(*this);
  if (follower_) follower_->make_room_begins();
  const std::string held = evictor_.make_room(bytes);
  if (follower_) follower_->make_room_ended();
  if (held.empty() || running_ == nullptr) return held;
  return held + "; the last operation that began is " + running_->name;
}

void Session::report(OnlineReport& report) const {
  report.calls = counts_.calls;
  report.kept_values = counts_.kept_values;
  report.evictions = evictor_.evictions();
  report.evicted_bytes = Bytes(evictor_.evicted_bytes());
  report.reruns = remaker_.reruns();
  report.rerun_cost = clock_.first_runs > 0 ? clock_.reruns / clock_.first_runs : 0;
}

}  // namespace reprise::runtime::internal::online
