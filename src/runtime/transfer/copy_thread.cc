#include "runtime/transfer/copy_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <string>
#include <system_error>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::transfer {

class CopyThread::Job final : public Ticket {
 public:
  Job(CopyPart part, std::vector<TicketPtr> after)
      : part_(std::move(part)), after_(std::move(after)) {}

  void wait() override {
    std::unique_lock lock(mutex_);
    over_.wait(lock, [&] { return is_over_; });
    if (failed_) std::rethrow_exception(failed_);
  }
  bool is_over() override {
    const std::scoped_lock lock(mutex_);
    return is_over_;
  }
  void cancel() noexcept override {
    cancelled_ = true;
    std::unique_lock lock(mutex_);
    over_.wait(lock, [&] { return is_over_; });
  }

  // These two functions are the thread's.
  void run() {
    std::exception_ptr failed;
    try {
      for (const TicketPtr& earlier : after_) earlier->wait();
      while (!cancelled_ && part_()) {
      }
      if (cancelled_) throw InputError("a copy was cancelled");
    } catch (...) {
      failed = std::current_exception();
    }
    end(failed);
  }
  void end(std::exception_ptr failed) {
    part_ = nullptr;
    after_.clear();
    const std::scoped_lock lock(mutex_);
    failed_ = std::move(failed);
    is_over_ = true;
    over_.notify_all();
  }

 private:
  CopyPart part_;
  std::vector<TicketPtr> after_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::exception_ptr failed_;
};

CopyThread::CopyThread(const char* name) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread has the mask of its maker
  std::string problem;
  try {
    thread_ = std::thread([this] { work(); });
    pthread_setname_np(thread_.native_handle(), name);
  } catch (const std::system_error& error) {
    problem = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (problem.empty()) return;
  throw InputError("the system has no thread for copies to a disk: " + problem +
                   "; raise the limit of threads, or leave the disk out");
}

CopyThread::~CopyThread() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

TicketPtr CopyThread::begin(CopyPart part, std::vector<TicketPtr> after) {
  auto job = std::make_shared<Job>(std::move(part), std::move(after));
  const std::scoped_lock lock(mutex_);
  queue_.push_back(job);
  changed_.notify_all();
  return job;
}

void CopyThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    const bool ends = ends_;
    lock.unlock();
    if (ends) {
      job->end(std::make_exception_ptr(InputError("a copy was cancelled")));
    } else {
      job->run();
    }
    lock.lock();
  }
}

}  // namespace reprise::runtime::internal::transfer
