// This header runs work on several threads, level by level: a level may read what earlier levels
// computed.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise::internal::common {

// Returns how many threads a request means; 0 asks for as many as the machine has.
inline int thread_count(int requested) {
  const int machine = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return requested > 0 ? std::min(requested, 256) : machine;
}

// Calls work(thread, item) for the items 0..level_ends.back()-1: the items of one level in any
// order, each level after the one before it. Only the calling thread calls poll(item), between
// items; false stops the work. Returns whether all items were done. The first exception of work or
// poll stops the work, too, and is thrown here.
template <class Work, class Poll>
bool for_each_by_level(const std::vector<size_t>& level_ends, int threads, const Work& work,
                       const Poll& poll) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> stop = false;
  std::exception_ptr error;
  std::mutex error_mutex;
  const size_t share = static_cast<size_t>(threads) * 8;
  const auto run_level = [&](int thread, size_t begin, size_t end) {
    const size_t chunk = std::clamp<size_t>((end - begin) / share, 1, 16);
    try {
      while (!stop.load(std::memory_order_relaxed)) {
        const size_t first = next.fetch_add(chunk);
        for (size_t item = first; item < std::min(first + chunk, end); ++item) {
          if (thread == 0 && !poll(item)) stop = true;
          if (stop.load(std::memory_order_relaxed)) return;
          work(thread, item);
        }
        if (first + chunk >= end) return;
      }
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
      stop = true;
    }
  };
  size_t level = 0;  // changed only while all threads wait
  std::barrier sync(threads, [&]() noexcept {
    next = level_ends[level];
    ++level;
  });
  const auto run = [&](int thread) {
    size_t begin = 0;
    for (const size_t end : level_ends) {
      run_level(thread, begin, end);
      begin = end;
      sync.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) {
      try {
        others.emplace_back(run, thread);
      } catch (...) {
        // If no further thread can start, the threads that run do the work. The missing threads are
        // counted out before any thread may leave, because otherwise the others would wait for
        // ever.
        for (int missing = thread; missing < threads; ++missing) sync.arrive_and_drop();
        break;
      }
    }
    run(0);
  }
  if (error) std::rethrow_exception(error);
  return !stop;
}

}  // namespace reprise::internal::common
