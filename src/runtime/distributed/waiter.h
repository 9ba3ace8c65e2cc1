// A message of c10d can be waited for, and it has no future that says when it is over. So a thread
// of its own waits for it, and the thread of the step can look whether other ranks have failed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace reprise::runtime::internal::distributed {

// A Signal is set once, by another thread.
class Signal {
 public:
  void set(std::exception_ptr failure = nullptr);
  // Returns whether it is set by then.
  bool wait(std::chrono::milliseconds time);
  // Returns why what was waited for failed, or null. The signal is set.
  std::exception_ptr failure();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
  std::exception_ptr failure_;
};

// A Waiter has one thread, which waits for one work after the other. If the Waiter ends while the
// thread waits, the thread goes on by itself and ends with that work.
class Waiter {
 public:
  Waiter();
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Returns a signal that is set at the end of the work, with its failure.
  std::shared_ptr<Signal> wait(c10::intrusive_ptr<c10d::Work> work);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace reprise::runtime::internal::distributed
