#include "runtime/distributed/waiter.h"

#include <deque>
#include <thread>
#include <utility>

namespace reprise::runtime::internal::distributed {

void Signal::set(std::exception_ptr failure) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_set_ = true;
    failure_ = std::move(failure);
  }
  changed_.notify_all();
}

bool Signal::wait(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return is_set_; });
}

std::exception_ptr Signal::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

struct Waiter::State {
  using Task = std::pair<c10::intrusive_ptr<c10d::Work>, std::shared_ptr<Signal>>;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool busy = false, ended = false;
  std::thread thread;

  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ended || !tasks.empty(); });
      if (ended) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        task.first->wait();
      } catch (...) {
        failure = std::current_exception();
      }
      task.first.reset();
      task.second->set(std::move(failure));
      lock.lock();
      busy = false;
    }
  }
};

Waiter::Waiter() : state_(std::make_shared<State>()) {
  state_->thread = std::thread([state = state_] { state->serve(); });
}

Waiter::~Waiter() {
  bool busy = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->ended = true;
    busy = state_->busy;
  }
  state_->changed.notify_all();
  if (busy) {
    state_->thread.detach();
  } else {
    state_->thread.join();
  }
}

std::shared_ptr<Signal> Waiter::wait(c10::intrusive_ptr<c10d::Work> work) {
  auto signal = std::make_shared<Signal>();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->tasks.emplace_back(std::move(work), signal);
  }
  state_->changed.notify_all();
  return signal;
}

}  // namespace reprise::runtime::internal::distributed
