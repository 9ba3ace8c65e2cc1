// This is a file without a name: it is gone as soon as nobody has it open, also when the process is
// killed.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/transfer/file_calls.h"

namespace reprise::runtime::internal::transfer {

class TemporaryFile {
 public:
  // The size and the place of what is read and written are multiples of it, and addresses, too.
  static constexpr int64_t kAlignment = 4096;

  // Opens a file in the directory, past the page cache (O_DIRECT) where the file system allows it.
  // Throws InputError, which says what to do. `calls` must outlive the file.
  TemporaryFile(const std::string& directory, FileCalls& calls);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool is_direct() const { return direct_; }
  int64_t free_bytes() const;  // on its file system
  // Makes sure that there is room up to this offset. Does nothing where the file system does not
  // know how. All three functions throw InputError.
  void reserve(int64_t end);
  void write(const void* from, int64_t bytes, int64_t offset);
  void read(void* to, int64_t bytes, int64_t offset);

 private:
  int open_unnamed(int flags);
  int open_named(int flags);
  [[noreturn]] void fail(const std::string& what, const char* call, int error) const;

  const std::string directory_;
  FileCalls& calls_;
  int file_ = -1;
  bool direct_ = true;
  int64_t reserved_ = 0;
};

}  // namespace reprise::runtime::internal::transfer
