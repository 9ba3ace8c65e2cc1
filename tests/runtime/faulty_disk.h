// These calls of the system fail, end early, return other bytes, or take long, when a test says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/transfer/file_calls.h"

namespace reprise::runtime::testing {

enum class DiskFault {
  kNoSpace,    // -1 and ENOSPC
  kError,      // -1 and EIO
  kEndsEarly,  // half of the bytes: no fault, the rest follows
  kNothing,    // no byte, and no error
  kFlipsBit,   // a read returns other bytes
};

// Stands before the calls of the system for a scope. The k-th call after arm(k) fails.
class FaultyDisk final : public internal::transfer::FileCalls {
 public:
  FaultyDisk() : scope_(*this) {}

  void arm(int64_t k, DiskFault fault) {
    fault_ = fault;
    failed_ = false;
    left_ = k;
  }
  void disarm() { left_ = 0; }
  bool failed() const { return failed_; }
  // Every read and write takes up to this long.
  void delay_up_to(std::chrono::milliseconds most) { delay_ = most.count(); }

  // The numbers of calls and bytes since the beginning.
  int64_t opened() const { return opened_; }
  int64_t closed() const { return closed_; }
  int64_t bytes_written() const { return written_; }
  int64_t bytes_read() const { return read_; }

  int open(const std::string& path, int flags) override {
    if (fails()) return fail();
    const int file = FileCalls::open(path, flags);
    if (file >= 0) ++opened_;
    return file;
  }
  int unlink(const std::string& path) override {
    return fails() ? fail() : FileCalls::unlink(path);
  }
  int close(int file) override {
    ++closed_;
    return FileCalls::close(file);
  }
  ssize_t write(int file, const void* from, size_t bytes, int64_t offset) override {
    sleep();
    if (fails()) {
      if (fault_ == DiskFault::kNothing) return 0;
      if (fault_ != DiskFault::kEndsEarly) return fail();
      bytes = std::max<size_t>(bytes / 2, 4096);
    }
    written_ += static_cast<int64_t>(bytes);
    return FileCalls::write(file, from, bytes, offset);
  }
  ssize_t read(int file, void* to, size_t bytes, int64_t offset) override {
    sleep();
    const bool failing = fails();
    if (failing) {
      if (fault_ == DiskFault::kNothing) return 0;
      if (fault_ == DiskFault::kNoSpace || fault_ == DiskFault::kError) return fail();
      if (fault_ == DiskFault::kEndsEarly) bytes = std::max<size_t>(bytes / 2, 4096);
    }
    read_ += static_cast<int64_t>(bytes);
    const ssize_t n = FileCalls::read(file, to, bytes, offset);
    if (failing && fault_ == DiskFault::kFlipsBit) static_cast<char*>(to)[7] ^= 1;
    return n;
  }
  int allocate(int file, int64_t offset, int64_t bytes) override {
    return fails() && fault_ != DiskFault::kEndsEarly ? fail()
                                                      : FileCalls::allocate(file, offset, bytes);
  }
  int64_t free_bytes(int file) override {
    return fails() && fault_ != DiskFault::kEndsEarly ? fail() : FileCalls::free_bytes(file);
  }

 private:
  // Several threads call.
  bool fails() {
    int64_t left = left_;
    while (left > 0 && !left_.compare_exchange_weak(left, left - 1)) {
    }
    if (left != 1) return false;
    failed_ = true;
    return true;
  }
  int fail() const {
    errno = fault_ == DiskFault::kNoSpace ? ENOSPC : EIO;
    return -1;
  }
  void sleep() const {
    if (delay_ == 0) return;
    thread_local std::mt19937 random(std::hash<std::thread::id>()(std::this_thread::get_id()));
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<uint64_t>(1000 * delay_)));
  }

  std::atomic<int64_t> left_{0}, opened_{0}, closed_{0}, written_{0}, read_{0}, delay_{0};
  std::atomic<DiskFault> fault_{DiskFault::kError};
  std::atomic<bool> failed_{false};
  internal::transfer::FileCallsScope scope_;
};

}  // namespace reprise::runtime::testing
