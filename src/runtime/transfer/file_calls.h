// These are the calls of the system that the disk makes, as a seam where tests make them fail or
// slow.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace reprise::runtime::internal::transfer {

// Each function returns what the call of the system returns: -1 and errno, if it fails. They may be
// called on several threads at once.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const std::string& path, int flags);  // with mode 0600
  virtual int unlink(const std::string& path);
  virtual int close(int file);
  virtual ssize_t write(int file, const void* from, size_t bytes, int64_t offset);
  virtual ssize_t read(int file, void* to, size_t bytes, int64_t offset);
  // Makes sure that the file has room on the disk for these bytes.
  virtual int allocate(int file, int64_t offset, int64_t bytes);
  // Returns the bytes that are free where the file is.
  virtual int64_t free_bytes(int file);
};

// Returns the calls that disks make which are opened from now on.
FileCalls& file_calls();

// Puts other calls in their place for a scope. Disks that were opened meanwhile keep them.
class FileCallsScope {
 public:
  explicit FileCallsScope(FileCalls& calls);
  ~FileCallsScope();
  FileCallsScope(const FileCallsScope&) = delete;
  FileCallsScope& operator=(const FileCallsScope&) = delete;

 private:
  FileCalls* before_;
};

}  // namespace reprise::runtime::internal::transfer
