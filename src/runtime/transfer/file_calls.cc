#include "runtime/transfer/file_calls.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>

namespace reprise::runtime::internal::transfer {
namespace {

std::atomic<FileCalls*> other_calls{nullptr};

}  // namespace

int FileCalls::open(const std::string& path, int flags) {
  return ::open(path.c_str(), flags, 0600);
}
int FileCalls::unlink(const std::string& path) { return ::unlink(path.c_str()); }
int FileCalls::close(int file) { return ::close(file); }
ssize_t FileCalls::write(int file, const void* from, size_t bytes, int64_t offset) {
  return ::pwrite(file, from, bytes, offset);
}
ssize_t FileCalls::read(int file, void* to, size_t bytes, int64_t offset) {
  return ::pread(file, to, bytes, offset);
}
int FileCalls::allocate(int file, int64_t offset, int64_t bytes) {
  return ::fallocate(file, 0, offset, bytes);
}
int64_t FileCalls::free_bytes(int file) {
  struct statvfs space {};
  if (::fstatvfs(file, &space) != 0) return -1;
  constexpr auto kMost = static_cast<unsigned long long>(std::numeric_limits<int64_t>::max());
  const auto unit = static_cast<unsigned long long>(space.f_frsize);
  const auto units = static_cast<unsigned long long>(space.f_bavail);
  return static_cast<int64_t>(unit == 0 ? 0 : std::min(units, kMost / unit) * unit);
}

FileCalls& file_calls() {
  static FileCalls system;
  FileCalls* const other = other_calls.load();
  return other != nullptr ? *other : system;
}

FileCallsScope::FileCallsScope(FileCalls& calls) : before_(other_calls.exchange(&calls)) {}
FileCallsScope::~FileCallsScope() { other_calls.store(before_); }

}  // namespace reprise::runtime::internal::transfer
