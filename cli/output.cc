#include "output.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise::cli {

namespace {

// stderr is for people. If it cannot be written, nobody can be told.
void to_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }

// This object holds back interrupts while it exists.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &old_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t old_;
};

[[noreturn]] void fail_errno(const std::filesystem::path& path, int error) {
  throw InputError("cannot write: " + std::generic_category().message(error),
                   {.file = path.string(), .pointer = {}, .line = 0});
}

}  // namespace

void print(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) return;
  throw InputError("cannot write to standard output: " + std::generic_category().message(errno));
}

void say(std::string_view text) { to_stderr("reprise: " + printable(text, true) + "\n"); }

void complain(std::string_view text) { say(fmt::format("error: {}", text)); }

namespace {

// Says whether two paths name one file that is replaced when it is written. Pipes and devices are not.
bool is_same_file(const std::filesystem::path& one, const std::filesystem::path& other) {
  struct stat a = {}, b = {};
  const bool has_a = ::stat(one.c_str(), &a) == 0, has_b = ::stat(other.c_str(), &b) == 0;
  if (has_a != has_b) return false;
  if (has_a) return S_ISREG(a.st_mode) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
  std::error_code error;
  return std::filesystem::weakly_canonical(one, error) ==
         std::filesystem::weakly_canonical(other, error);
}

void require_place(const std::filesystem::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail_errno(path, EISDIR);
    if (::access(path.c_str(), W_OK) != 0) fail_errno(path, errno);
    if (!S_ISREG(status.st_mode)) return;
  } else if (errno != ENOENT) {
    fail_errno(path, errno);
  }
  if (std::filesystem::is_symlink(path)) return;  // write_file() checks the folder of the target
  const std::filesystem::path folder =
      path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail_errno(path, errno);
}

}  // namespace

void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  std::vector<NamedFile> others = inputs;
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    require_place(output.path);
    for (const NamedFile& other : others) {
      if (other.path.empty() || !is_same_file(output.path, other.path)) continue;
      throw InputError(
          fmt::format("{} and {} are the same file, and one would replace the other: name another "
                      "file for {}",
                      other.argument, output.argument, output.argument),
          {.file = output.path.string(), .pointer = {}, .line = 0});
    }
    others.push_back(output);
  }
}

void write_output(const std::filesystem::path& path, std::string_view content) {
  struct stat status = {};
  // A pipe may wait for its reader for ever, and nothing of it can be left half-written behind.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return write_file(path, content);
  }
  const SignalsBlocked blocked;
  write_file(path, content);
}

std::string share_of_plain(Bytes bytes, const Baseline& plain) {
  if (plain.peak <= Bytes(0)) return {};
  const double share = static_cast<double>(bytes.count()) / static_cast<double>(plain.peak.count());
  return fmt::format(", {:.1f} % of plain training's peak", 100 * share);
}

TextOptions text_options() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool forbidden = no_color != nullptr && *no_color != '\0';
  return {.color = ::isatty(STDOUT_FILENO) == 1 && !forbidden};
}

StatusLine::StatusLine(bool quiet) : enabled_(!quiet && ::isatty(STDERR_FILENO) == 1) {}

Observer StatusLine::observer() {
  if (!enabled_) return {};
  return [this](const Progress& progress) { show(progress); };
}

void StatusLine::show(const Progress& progress) {
  constexpr std::chrono::milliseconds kInterval(100);
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - last_ < kInterval) return;
  last_ = now;
  shown_ = true;
  constexpr size_t kWidth = 76;  // longer lines would wrap, and could not be wiped
  std::string line = progress.task;
  if (progress.fraction >= 0) line += fmt::format(" {:3.0f} %", 100 * progress.fraction);
  if (!progress.message.empty()) line += " " + progress.message;
  line = printable(line).substr(0, kWidth);
  to_stderr("\r\x1b[K" + line);
}

void StatusLine::wipe() {
  if (shown_) to_stderr("\r\x1b[K");
  shown_ = false;
}

}  // namespace reprise::cli
