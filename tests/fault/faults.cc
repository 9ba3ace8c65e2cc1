#include "fault/faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace reprise::testing {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Counts down, and is true once, at zero.
struct Countdown {
  std::atomic<int64_t> left = kNever;
  std::atomic<bool> happened = false;

  void start(int64_t at) {
    happened = false;
    left = at;
  }
  bool hit() {
    if (left.load(std::memory_order_relaxed) == kNever) return false;
    if (left.fetch_sub(1) != 0) return false;
    happened = true;
    return true;
  }
};

Countdown allocations, calls, threads;
std::atomic<int64_t> live = 0;
std::atomic<FileFault> fault = FileFault::kError;
std::atomic<int> fault_errno = 0;
std::atomic<bool> next_write_fails = false;

void* allocate(size_t size, size_t alignment) {
  if (allocations.hit()) throw std::bad_alloc();
  const size_t least = size == 0 ? 1 : size;
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(least)
          : std::aligned_alloc(alignment, (least + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  ++live;
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  --live;
  std::free(memory);
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

// Does the fault that is due in place of the call, or the call itself when no fault is due.
template <class Call>
auto faulty(const Call& call) -> decltype(call()) {
  if (!calls.hit()) return call();
  switch (fault.load()) {
    case FileFault::kError:
    case FileFault::kShort:
      errno = fault_errno;
      return -1;
    case FileFault::kKillBefore:
      die();
    case FileFault::kKillHalf:
      call();
      die();
  }
  return -1;
}

}  // namespace

AllocationFault::AllocationFault(int64_t fails_at) { allocations.start(fails_at); }
AllocationFault::~AllocationFault() { allocations.left = kNever; }
bool AllocationFault::happened() const { return allocations.happened; }

int64_t live_allocations() { return live; }

SystemCallFault::SystemCallFault(FileFault kind, int64_t fails_at, int error) {
  fault = kind;
  fault_errno = error;
  next_write_fails = false;
  calls.start(fails_at);
}
SystemCallFault::~SystemCallFault() {
  calls.left = kNever;
  next_write_fails = false;
}
bool SystemCallFault::happened() const { return calls.happened; }

ThreadFault::ThreadFault(int64_t fails_at) { threads.start(fails_at); }
ThreadFault::~ThreadFault() { threads.left = kNever; }

}  // namespace reprise::testing

using reprise::testing::allocate;
using reprise::testing::faulty;
using reprise::testing::release;

void* operator new(size_t size) { return allocate(size, 1); }
void* operator new[](size_t size) { return allocate(size, 1); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
// std::stable_sort asks for its buffer in this way, and does without it when there is none.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return operator new(size, std::nothrow);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

// These are the calls of src/io/file.cc. They are defined in the program, so they go before those
// of the C library.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return faulty(
      [&] { return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode)); });
}

ssize_t write(int fd, const void* data, size_t size) {
  using namespace reprise::testing;
  if (next_write_fails.exchange(false)) {
    errno = fault_errno;
    return -1;
  }
  const auto really = [&](size_t count) { return ::syscall(SYS_write, fd, data, count); };
  if (!calls.hit()) return really(size);
  switch (fault.load()) {
    case FileFault::kError:
      errno = fault_errno;
      return -1;
    case FileFault::kShort:
      next_write_fails = true;
      return really(size / 2);
    case FileFault::kKillBefore:
      die();
    case FileFault::kKillHalf:
      really(size / 2);
      die();
  }
  return -1;
}

int fsync(int fd) {
  return faulty([&] { return static_cast<int>(::syscall(SYS_fsync, fd)); });
}
int fchmod(int fd, mode_t mode) noexcept {
  return faulty([&] { return static_cast<int>(::syscall(SYS_fchmod, fd, mode)); });
}
int flock(int fd, int operation) noexcept {
  return faulty([&] { return static_cast<int>(::syscall(SYS_flock, fd, operation)); });
}
int rename(const char* from, const char* to) noexcept {
  return faulty([&] { return static_cast<int>(::syscall(SYS_rename, from, to)); });
}
int unlink(const char* path) noexcept {
  return faulty([&] { return static_cast<int>(::syscall(SYS_unlink, path)); });
}
// A close() that fails has closed the file all the same.
int close(int fd) {
  bool really = false;
  const int result = faulty([&] {
    really = true;
    return static_cast<int>(::syscall(SYS_close, fd));
  });
  if (!really) ::syscall(SYS_close, fd);
  return result;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  using Function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "pthread_create"));
  using reprise::testing::threads;
  if (threads.hit()) {
    threads.left = 0;  // the next one, too
    return EAGAIN;
  }
  return real(thread, attributes, start, argument);
}

}  // extern "C"
