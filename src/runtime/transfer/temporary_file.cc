#include "runtime/transfer/temporary_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <system_error>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::transfer {
namespace {

constexpr int kAttempts = 16;  // at a name that nobody has

std::string advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space there, name a directory with more, or ask for a larger budget";
    case EIO:
      return "the disk reports a fault: see the system's log, and name a directory on another disk";
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS:
      return "name a directory that exists and that you may write to";
    default:
      return "name another directory, or leave the disk out";
  }
}

}  // namespace

void TemporaryFile::fail(const std::string& what, const char* call, int error) const {
  throw InputError(fmt::format(
      "cannot {} the temporary file in '{}' where values of a step wait: {} "
      "({}, errno {}); {}",
      what, directory_, std::generic_category().message(error), call, error, advice(error)));
}

TemporaryFile::TemporaryFile(const std::string& directory, FileCalls& calls)
    : directory_(directory), calls_(calls) {
  file_ = open_unnamed(O_DIRECT);
  if (file_ < 0 && errno == EINVAL) {  // the file system has no O_DIRECT
    direct_ = false;
    file_ = open_unnamed(0);
  }
  if (file_ < 0) fail("open", "open", errno);
}

TemporaryFile::~TemporaryFile() {
  if (file_ >= 0) calls_.close(file_);
}

int TemporaryFile::open_unnamed(int flags) {
  const int file = calls_.open(directory_, O_TMPFILE | O_RDWR | O_CLOEXEC | flags);
  // Some file systems have no files without a name.
  const bool unknown = file < 0 && (errno == EOPNOTSUPP || errno == EISDIR);
  return unknown ? open_named(flags) : file;
}

// The file loses its name before anything is in it.
int TemporaryFile::open_named(int flags) {
  std::random_device random;
  for (int k = 0; k < kAttempts; ++k) {
    const std::string path = fmt::format("{}/.reprise-{}-{:08x}", directory_, ::getpid(),
                                         static_cast<uint32_t>(random()));
    const int file = calls_.open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | flags);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return file;
    if (calls_.unlink(path) == 0) return file;
    const int error = errno;
    calls_.close(file);
    fail(fmt::format("take away the name '{}' of", path), "unlink", error);
  }
  errno = EEXIST;
  return -1;
}

int64_t TemporaryFile::free_bytes() const {
  const int64_t bytes = calls_.free_bytes(file_);
  if (bytes < 0) fail("ask for the free space of", "fstatvfs", errno);
  return bytes;
}

void TemporaryFile::reserve(int64_t end) {
  if (end <= reserved_) return;
  while (calls_.allocate(file_, reserved_, end - reserved_) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;  // writes will find out
    fail(fmt::format("make room for {} bytes at {} in", end - reserved_, reserved_), "fallocate",
         errno);
  }
  reserved_ = end;
}

void TemporaryFile::write(const void* from, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = calls_.write(file_, static_cast<const char*>(from) + done,
                                   static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(fmt::format("write {} bytes at {} of", bytes - done, offset + done), "pwrite", errno);
    // A call that ends early goes on behind its last whole block; less than a block is no progress.
    const int64_t whole = n / kAlignment * kAlignment;
    if (whole == 0) {
      fail(fmt::format("write more than {} of {} bytes at {} of", n, bytes - done, offset + done),
           "pwrite", ENOSPC);
    }
    done += whole;
  }
}

void TemporaryFile::read(void* to, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = calls_.read(file_, static_cast<char*>(to) + done,
                                  static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(fmt::format("read {} bytes at {} of", bytes - done, offset + done), "pread", errno);
    const int64_t whole = n / kAlignment * kAlignment;
    if (whole == 0) {
      fail(fmt::format("read more than {} of {} bytes at {} of", n, bytes - done, offset + done),
           "pread", EIO);
    }
    done += whole;
  }
}

}  // namespace reprise::runtime::internal::transfer
