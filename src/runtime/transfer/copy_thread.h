// This is a thread that makes copies, one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/transfer/offload_memory.h"

namespace reprise::runtime::internal::transfer {

// Copies a part, and returns whether there is more to do.
using CopyPart = std::function<bool()>;

// The thread takes no signals, so that those of the user reach the user's threads. The destructor
// ends the copies that are under way.
class CopyThread {
 public:
  // Throws InputError if the system has no thread.
  explicit CopyThread(const char* name);
  ~CopyThread();
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // Begins a copy, whose parts come until there are no more. It waits for the copies of `after`; if
  // one of them failed, or was cancelled, so is this one.
  TicketPtr begin(CopyPart part, std::vector<TicketPtr> after);

 private:
  class Job;

  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace reprise::runtime::internal::transfer
