// Threads that use one object take turns. A turn may end on another thread than it began on.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace reprise::runtime::internal::device {

class Turns {
 public:
  // A Turn is the use of the object by one thread. The constructor waits for the turns of other
  // threads. The destructor may run on any thread. The turns of one thread may nest.
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) {
      const std::thread::id self = std::this_thread::get_id();
      std::unique_lock lock(turns_.mutex_);
      turns_.ended_.wait(lock, [&] { return turns_.depth_ == 0 || turns_.owner_ == self; });
      turns_.owner_ = self;
      ++turns_.depth_;
    }
    ~Turn() {
      const std::lock_guard lock(turns_.mutex_);
      if (--turns_.depth_ == 0) turns_.ended_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::thread::id owner_;
  int depth_ = 0;
};

}  // namespace reprise::runtime::internal::device
