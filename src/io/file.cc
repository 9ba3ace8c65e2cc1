// Reads whole files with a limit and writes them atomically.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "io/file_access.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace io {

void fail_file(const std::filesystem::path& path, const std::string& what) {
  throw InputError(what, {.file = path.string(), .pointer = {}, .line = 0});
}

void fail_file(const std::filesystem::path& path, const std::string& what, int error) {
  fail_file(path, what + ": " + std::generic_category().message(error));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

bool FileDescriptor::close() { return ::close(std::exchange(fd_, -1)) == 0; }

namespace {

namespace fs = std::filesystem;

// Refuses a path with a zero byte: a C string ends there, so that the path would name another file.
void check_path(const fs::path& path) {
  if (path.empty()) throw InputError("a file name is needed, and it is empty");
  if (path.native().find('\0') != std::string::npos) {
    throw InputError("a file name with a zero byte in it");
  }
}

int open_retrying(const fs::path& path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Returns false, with errno set, if not all was written.
bool write_all(int fd, std::span<const std::string_view> pieces) {
  for (std::string_view content : pieces) {
    while (!content.empty()) {
      const ssize_t count = ::write(fd, content.data(), content.size());
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) errno = EIO;  // A device took nothing and gave no error; do not try for ever.
      if (count <= 0) return false;
      content.remove_prefix(static_cast<size_t>(count));
    }
  }
  return true;
}

constexpr std::string_view kTemporaryPrefix = ".reprise-", kTemporarySuffix = ".tmp";

// Says whether the name is of the form ".reprise-PROCESS-NUMBER.tmp".
bool is_temporary_name(std::string_view name) {
  if (!name.starts_with(kTemporaryPrefix) || !name.ends_with(kTemporarySuffix)) return false;
  name.remove_prefix(kTemporaryPrefix.size());
  name.remove_suffix(kTemporarySuffix.size());
  const size_t dash = name.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < name.size() &&
         name.find_first_not_of("0123456789", dash + 1) == std::string_view::npos &&
         name.find_first_not_of("0123456789") == dash;
}

fs::path folder_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

// Locks a temporary file. Its writer holds the lock, which ends with the process, however the
// process ends. Also returns true where the file system has no locks: then no other process can
// take the file for one that a killed process left.
bool lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

bool has_name(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink > 0;
}

// Removes the temporary files of processes that were killed while they wrote.
void remove_left_behind(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_temporary_name(entry->path().filename().native())) continue;
    const FileDescriptor file(open_retrying(entry->path(), O_RDWR | O_NOFOLLOW | O_NONBLOCK));
    if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (has_name(file.get())) ::unlink(entry->path().c_str());
  }
}

// A TemporaryFile lies beside the target. It is removed unless it is renamed onto the target.
class TemporaryFile {
 public:
  TemporaryFile(const fs::path& target, mode_t mode) {
    static std::atomic<unsigned> counter = 0;
    const fs::path folder = folder_of(target);
    constexpr int kAttempts = 100;  // A process with our id on another machine may use some names.
    for (int i = 0; i < kAttempts && fd_ < 0; ++i) {
      path_ = folder / (std::string(kTemporaryPrefix) + std::to_string(::getpid()) + "-" +
                        std::to_string(counter++) + std::string(kTemporarySuffix));
      fd_ = open_retrying(path_, O_WRONLY | O_CREAT | O_EXCL, mode);
      if (fd_ < 0 && errno != EEXIST) break;
      if (fd_ < 0 || (lock(fd_) && has_name(fd_))) continue;
      ::unlink(path_.c_str());  // Before the lock, another process took it for a forgotten one.
      ::close(std::exchange(fd_, -1));
      errno = EEXIST;
    }
    if (fd_ < 0) fail_file(target, "cannot write: no file can be made in its folder", errno);
  }
  ~TemporaryFile() {
    if (!renamed_) ::unlink(path_.c_str());
    ::close(fd_);  // This ends the lock.
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  // Returns a descriptor to write to, and to close with a look at the result. The lock stays.
  int duplicate() const { return ::fcntl(fd_, F_DUPFD_CLOEXEC, 0); }
  bool rename_to(const fs::path& target) {
    renamed_ = ::rename(path_.c_str(), target.c_str()) == 0;
    return renamed_;
  }

 private:
  fs::path path_;
  int fd_ = -1;
  bool renamed_ = false;
};

// Writes in place. Pipes and devices cannot be replaced: a rename onto /dev/null would destroy it.
void write_in_place(const fs::path& path, std::span<const std::string_view> pieces) {
  FileDescriptor file(open_retrying(path, O_WRONLY));
  if (!file.valid()) fail_file(path, "cannot write", errno);
  if (!write_all(file.get(), pieces) || !file.close()) fail_file(path, "cannot write", errno);
}

// Follows symbolic links, so that a link stays a link and its target is written. The target need
// not exist.
fs::path follow_links(const fs::path& path) {
  fs::path target = path;
  constexpr int kMostLinks = 40;  // The kernel has the same limit.
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(target, error);
    if (error) return target;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  fail_file(path, "cannot write", ELOOP);
}

void sync_folder(const fs::path& target) {
  const fs::path folder = folder_of(target);
  // The new file is in place already. A file system that cannot sync folders is no reason to say
  // that nothing was written.
  const FileDescriptor descriptor(open_retrying(folder, O_RDONLY | O_DIRECTORY));
  if (descriptor.valid()) static_cast<void>(::fsync(descriptor.get()));
}

}  // namespace

FileDescriptor open_to_read(const fs::path& path) {
  check_path(path);
  FileDescriptor file(open_retrying(path, O_RDONLY));
  if (!file.valid()) fail_file(path, "cannot read", errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail_file(path, "cannot read", errno);
  if (S_ISDIR(status.st_mode)) fail_file(path, "cannot read", EISDIR);
  return file;
}

void write_pieces(const fs::path& path, std::span<const std::string_view> pieces) {
  check_path(path);
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) fail_file(path, "cannot write", errno);
  if (exists && S_ISDIR(status.st_mode)) fail_file(path, "cannot write", EISDIR);
  if (exists && !S_ISREG(status.st_mode)) return write_in_place(path, pieces);
  // rename() needs no permission for the file that it replaces.
  if (exists && ::access(path.c_str(), W_OK) != 0) fail_file(path, "cannot write", errno);

  const fs::path target = follow_links(path);
  if (!target.has_filename()) fail_file(path, "cannot write", EISDIR);
  remove_left_behind(folder_of(target));
  TemporaryFile temporary(target, 0666);  // The kernel takes the umask off.
  FileDescriptor file(temporary.duplicate());
  if (!file.valid()) fail_file(path, "cannot write", errno);
  if (exists) static_cast<void>(::fchmod(file.get(), status.st_mode & 07777));
  if (!write_all(file.get(), pieces)) fail_file(path, "cannot write", errno);
  if (::fsync(file.get()) != 0) fail_file(path, "cannot write", errno);
  if (!file.close()) fail_file(path, "cannot write", errno);
  if (!temporary.rename_to(target)) fail_file(path, "cannot write", errno);
  sync_folder(target);
}

}  // namespace io

void write_file(const std::filesystem::path& path, std::string_view content) {
  io::write_pieces(path, {&content, 1});
}

std::string read_file(const std::filesystem::path& path, size_t limit) {
  using io::fail_file;
  const io::FileDescriptor file = io::open_to_read(path);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail_file(path, "cannot read", errno);
  const std::string too_large = "is larger than " + std::to_string(limit) + " bytes";
  const auto announced = static_cast<size_t>(status.st_size);
  if (S_ISREG(status.st_mode) && announced > limit) fail_file(path, too_large);

  // The announced size is a hint only: pipes have none, and files can grow while they are read.
  std::string content;
  size_t filled = 0;
  while (true) {
    if (filled == content.size()) {
      constexpr size_t kLeast = 4096;
      const size_t wanted = filled == 0 && S_ISREG(status.st_mode) ? announced : filled * 2;
      content.resize(std::min(std::max(wanted, kLeast), limit) + 1);
    }
    const ssize_t count = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(path, "cannot read", errno);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
    if (filled > limit) fail_file(path, too_large);
  }
  content.resize(filled);
  return content;
}

}  // namespace reprise
