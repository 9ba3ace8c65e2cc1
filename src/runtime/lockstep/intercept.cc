#include "runtime/lockstep/intercept.h"

#include <ATen/core/dispatch/ObservedOperators.h>
#include <torch/library.h>

#include "reprise/model/errors.h"
#include "runtime/step/operators.h"

namespace reprise::runtime::internal::lockstep {
namespace {

using c10::DispatchKeySet;

// This key stands below those of autograd, autocast and the modes of Python, and above those of the
// kernels.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;
// LibTorch makes a tensor plain that is conjugate or negative by a flag, by further calls of
// operators. An Interception leaves these two keys out, because no kernel reads the tensor here.
constexpr DispatchKeySet kFlags({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

std::mutex turn;
Taker* active = nullptr;  // only the thread whose turn it is, and its backward passes, use it
thread_local bool intercepting_here = false;
thread_local bool has_turn = false;  // this thread, in an interception of any kind

void on_call(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  if (active != nullptr && c10::ObservedOperators::isObserved(op.operator_name()) &&
      !step::is_transparent(op, active->device())) {
    const c10::impl::ExcludeDispatchKeyGuard own_calls(kKey);
    active->take(op, *stack);
    return;
  }
  // An operator that consists of others calls them one by one.
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kKey), stack);
}

// Registers the fallback of the key, once. Returns whether the key is ours.
bool has_key() {
  static const bool ours = [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey)) return false;
    auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&on_call>());
    return true;
  }();
  return ours;
}

std::unique_lock<std::mutex> my_turn() {
  if (!has_key()) {
    throw InputError("lockstep needs a dispatch key of LibTorch that another library has taken");
  }
  if (has_turn) {
    throw InputError("a captured step is called by the function of another one");
  }
  return std::unique_lock(turn);
}

std::unique_lock<std::mutex> turn_if_free() {
  if (has_turn || !has_key()) return {};
  return std::unique_lock(turn, std::try_to_lock);
}

}  // namespace

void call_plainly(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard plain(now.included_ - DispatchKeySet(kKey),
                                               now.excluded_ - kFlags);
  op.callBoxed(stack);
}

void leave_recording(const std::string& reason) {
  if (intercepting_here) active->leave(reason);
}

bool touch_gradient(const at::Tensor& leaf) {
  if (intercepting_here) active->touch_gradient(leaf);
  return intercepting_here;
}

int64_t mark_random_state() { return intercepting_here ? active->mark_random_state() : -1; }

void return_to_random_state(int64_t mark) {
  if (intercepting_here) active->return_to_random_state(mark);
}

bool can_intercept() { return has_key(); }

Interception::Interception(Taker& taker)
    : turn_(my_turn()), key_(DispatchKeySet(kKey)), as_it_is_(kFlags) {
  active = &taker;
  intercepting_here = has_turn = true;
}

Interception::~Interception() {
  active = nullptr;
  intercepting_here = has_turn = false;
}

InterceptionIfFree::InterceptionIfFree(Taker& taker) : turn_(turn_if_free()) {
  if (!intercepts()) return;
  key_.emplace(DispatchKeySet(kKey));
  as_it_is_.emplace(kFlags);
  active = &taker;
  has_turn = true;
}

InterceptionIfFree::~InterceptionIfFree() {
  if (!intercepts()) return;
  active = nullptr;
  has_turn = false;
}

}  // namespace reprise::runtime::internal::lockstep
