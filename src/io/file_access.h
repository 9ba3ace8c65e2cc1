// These are the parts that readers and writers of files share: descriptors, errors with the path,
// and the atomic write of a file that is given in pieces.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace reprise::io {

// Throw an InputError about this file. The second one adds the system's text for `error`.
[[noreturn]] void fail_file(const std::filesystem::path& path, const std::string& what);
[[noreturn]] void fail_file(const std::filesystem::path& path, const std::string& what, int error);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Network file systems report a failed write only here.
  bool close();

 private:
  int fd_;
};

// Opens a file for reading. Throws InputError if that is not possible, and for a folder.
FileDescriptor open_to_read(const std::filesystem::path& path);

// As write_file(), for a content that is given in pieces.
void write_pieces(const std::filesystem::path& path, std::span<const std::string_view> pieces);

}  // namespace reprise::io
