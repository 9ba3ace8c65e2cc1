// Makes faults on demand, in a program that replaces operator new and the system calls of files by
// its own: the k-th of them fails, or kills the process.
#pragma once

#include <cstdint>

namespace reprise::testing {

// --- Memory -------------------------------------------------------------------------------------------
// While an AllocationFault lives, allocation number `fails_at` (from 0, of all threads) throws
// std::bad_alloc.
class AllocationFault {
 public:
  explicit AllocationFault(int64_t fails_at);
  ~AllocationFault();
  AllocationFault(const AllocationFault&) = delete;
  AllocationFault& operator=(const AllocationFault&) = delete;

  bool happened() const;  // otherwise there were fewer allocations
};

int64_t live_allocations();  // made by operator new and not deleted, of the whole program

// --- Files --------------------------------------------------------------------------------------------
// Each call of open, write, fsync, fchmod, flock, rename, unlink and close counts one.
enum class FileFault {
  kError,       // the call fails with the given errno and does nothing
  kShort,       // a write writes half of it, the next one fails
  kKillBefore,  // SIGKILL instead of the call
  kKillHalf,    // a write writes half of it, then SIGKILL; of other calls: SIGKILL after the call
};

class SystemCallFault {
 public:
  SystemCallFault(FileFault fault, int64_t fails_at, int error = 0);
  ~SystemCallFault();
  SystemCallFault(const SystemCallFault&) = delete;
  SystemCallFault& operator=(const SystemCallFault&) = delete;

  bool happened() const;
};

// pthread_create fails with EAGAIN from thread number `fails_at` on.
class ThreadFault {
 public:
  explicit ThreadFault(int64_t fails_at);
  ~ThreadFault();
  ThreadFault(const ThreadFault&) = delete;
  ThreadFault& operator=(const ThreadFault&) = delete;
};

}  // namespace reprise::testing
