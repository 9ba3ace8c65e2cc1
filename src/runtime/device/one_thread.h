// Keeps the backward pass of a step on one thread.
#pragma once

#include <c10/core/AutogradState.h>

namespace reprise::runtime::internal::device {

// While a OneThread lives, backward passes that this thread begins run on it. Autograd has a thread
// for each device other than the CPU otherwise, and what is in force on a thread (sources of blocks,
// callbacks, limits) would not be in force there.
class OneThread {
 public:
  OneThread() : before_(state().get_multithreading_enabled()) {
    state().set_multithreading_enabled(false);
  }
  ~OneThread() { state().set_multithreading_enabled(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  const bool before_;
};

}  // namespace reprise::runtime::internal::device
