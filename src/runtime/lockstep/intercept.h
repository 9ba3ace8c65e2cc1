// Takes the calls of operators below autograd, in the place of their kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/step/record.h"

namespace reprise::runtime::internal::lockstep {

// A Taker gets each call of an operator that has a kernel of its own on the device. It takes the
// arguments from the stack and puts the results there. Operators that it calls itself run as ever.
// An exception goes to the caller of the operator.
class Taker {
 public:
  virtual ~Taker() = default;
  virtual c10::Device device() const = 0;
  virtual void take(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
  // The program does something that no operator shows, for this reason.
  virtual void leave(const std::string& reason) = 0;
  // The program looks at the gradient of a leaf.
  virtual void touch_gradient(const at::Tensor& leaf) = 0;
  // The program looks at the random state, to set it again by the mark that this returns. The mark is
  // -1 where the state itself is there.
  virtual int64_t mark_random_state() { return -1; }
  virtual void return_to_random_state(int64_t) {}
};

// These tell the taker of this thread's calls, if there is one. touch_gradient() returns whether there
// is one.
void leave_recording(const std::string& reason);
bool touch_gradient(const at::Tensor& leaf);
int64_t mark_random_state();
void return_to_random_state(int64_t mark);

// Says whether calls can be taken. They are taken under a dispatch key that LibTorch 2.11 to 2.14
// leave free. Another library of the process may have taken it.
bool can_intercept();

// Calls the operator from inside take(), as it runs without an interception.
void call_plainly(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// While an Interception lives, the taker gets the calls of this thread, and those of the backward
// passes that it begins. Autograd and autocast do their part of a call before. One interception
// lives at a time in a process; the constructor waits for its turn. It throws InputError inside
// another interception of its thread.
class Interception {
 public:
  explicit Interception(Taker& taker);
  ~Interception();
  Interception(const Interception&) = delete;
  Interception& operator=(const Interception&) = delete;

 private:
  std::unique_lock<std::mutex> turn_;
  step::AsRecorded as_recorded_;
  c10::impl::IncludeDispatchKeyGuard key_;
  c10::impl::ExcludeDispatchKeyGuard as_it_is_;
};

// Does the same while no other interception lives in the process; else the taker gets no calls.
// Layers with kernels of their own run as they always do.
class InterceptionIfFree {
 public:
  explicit InterceptionIfFree(Taker& taker);
  ~InterceptionIfFree();
  InterceptionIfFree(const InterceptionIfFree&) = delete;
  InterceptionIfFree& operator=(const InterceptionIfFree&) = delete;

  bool intercepts() const { return turn_.owns_lock(); }

 private:
  std::unique_lock<std::mutex> turn_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> key_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> as_it_is_;
};

}  // namespace reprise::runtime::internal::lockstep
