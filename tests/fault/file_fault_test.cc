// write_file() and write_tensors() meet faults at every system call that they make. The file is then
// the old one or the new one, and what a killed process left behind is gone after the next write.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "fault/faults.h"
#include "reprise/io/json.h"
#include "reprise/io/tensors.h"
#include "reprise/model/errors.h"

namespace reprise::testing {
namespace {

namespace fs = std::filesystem;

const std::string kOld(3'000, 'o'), kNew(5'000, 'n');

// The fixture has a folder with the old file in it.
class FileFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "reprise-fault-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "plan.json";
    write_file(file_, kOld);
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  // Forgets what an earlier case wrote.
  void restore() { write_file(file_, kOld); }

  fs::path folder_, file_;
};

// Ends the child process, with exit code 0 if the file was written.
[[noreturn]] void write_in_child(const fs::path& file, const std::string& content, int times = 1) {
  try {
    for (int time = 0; time < times; ++time) write_file(file, content);
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

// Writes in a child process. Returns true if the child was killed, and false if it came to the end
// of the write.
bool killed_while_writing(const fs::path& file, FileFault fault, int64_t call) {
  const pid_t child = ::fork();
  if (child == 0) {
    const SystemCallFault armed(fault, call);
    write_in_child(file, kNew);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) || WTERMSIG(status) == SIGKILL) << status;
  return WIFSIGNALED(status);
}

TEST_F(FileFaults, KilledAtAnyCallTheFileIsTheOldOrTheNewOne) {
  int64_t killed = 0;
  for (const FileFault fault : {FileFault::kKillBefore, FileFault::kKillHalf}) {
    int64_t call = 0;
    bool was_new = false;
    for (; killed_while_writing(file_, fault, call); ++call) {
      SCOPED_TRACE("killed at call " + std::to_string(call));
      ASSERT_LT(call, 100);
      const std::string content = read_file(file_);
      EXPECT_TRUE(content == kOld || content == kNew) << content.size();
      EXPECT_FALSE(was_new && content == kOld) << "new at an earlier call";
      was_new = content == kNew;
      EXPECT_LE(entries(), 2u);
      restore();
      EXPECT_EQ(entries(), 1u) << "left behind after the next write";
      was_new = false;
    }
    EXPECT_GE(call, 7) << "open, lock, chmod, write, sync, close, rename";
    EXPECT_TRUE(read_file(file_) == kNew);
    restore();
    killed += call;
  }
  std::printf("killed %lld times\n", static_cast<long long>(killed));
}

TEST_F(FileFaults, AnyCallThatFailsLeavesTheOldFileOrTheNewOne) {
  int64_t failed = 0;
  for (const int error : {ENOSPC, EIO, EDQUOT, EACCES}) {
    for (const FileFault fault : {FileFault::kError, FileFault::kShort}) {
      for (int64_t call = 0;; ++call) {
        SCOPED_TRACE("call " + std::to_string(call) + ", errno " + std::to_string(error));
        ASSERT_LT(call, 100);
        bool refused = false, happened = false;
        {
          const SystemCallFault armed(fault, call, error);
          try {
            write_file(file_, kNew);
          } catch (const InputError& failure) {
            refused = true;
            EXPECT_EQ(failure.where().file, file_.string());
          }
          happened = armed.happened();
        }
        EXPECT_TRUE(read_file(file_) == (refused ? kOld : kNew)) << refused;
        EXPECT_EQ(entries(), 1u);
        restore();
        if (!happened) break;
        ++failed;
      }
    }
  }
  std::printf("%lld calls failed\n", static_cast<long long>(failed));
}

TEST_F(FileFaults, AnInterruptedCallIsMadeAgainOrTheOldFileStays) {
  int written = 0;
  for (int64_t call = 0;; ++call) {
    SCOPED_TRACE(call);
    ASSERT_LT(call, 100);
    restore();
    const SystemCallFault armed(FileFault::kError, call, EINTR);
    bool refused = false;  // sync, close and rename are not made again
    try {
      write_file(file_, kNew);
      ++written;
    } catch (const InputError&) {
      refused = true;
    }
    EXPECT_TRUE(read_file(file_) == (refused ? kOld : kNew)) << refused;
    if (!armed.happened()) break;
  }
  EXPECT_GE(written, 3) << "open and write are made again";
}

TEST_F(FileFaults, AFileThatSomebodyWritesIsLeftAlone) {
  const fs::path theirs = folder_ / ".reprise-999999999-0.tmp";
  std::ofstream(theirs) << "half";
  const int fd = ::open(theirs.c_str(), O_WRONLY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  write_file(file_, kNew);
  EXPECT_TRUE(fs::exists(theirs));
  ::close(fd);  // as when they are killed
  write_file(file_, kOld);
  EXPECT_FALSE(fs::exists(theirs));
}

TEST_F(FileFaults, FilesOfOtherNamesAndKindsAreLeftAlone) {
  const auto names = {".reprise-1-.tmp",  ".reprise--1.tmp", ".reprise-1-2.tmp.json",
                      ".reprise-a-1.tmp", "reprise-1-2.tmp", ".reprise-1-2b.tmp",
                      ".reprise-1.tmp",   ".reprise-.tmp"};
  for (const char* name : names) std::ofstream(folder_ / name) << "mine";
  std::ofstream(folder_ / "mine.txt") << "mine";
  fs::create_symlink("mine.txt", folder_ / ".reprise-1-2.tmp");
  fs::create_directory(folder_ / ".reprise-1-3.tmp");
  write_file(file_, kNew);
  for (const char* name : names) EXPECT_TRUE(fs::exists(folder_ / name)) << name;
  EXPECT_TRUE(fs::is_symlink(folder_ / ".reprise-1-2.tmp"));
  EXPECT_TRUE(fs::exists(folder_ / "mine.txt"));
  EXPECT_TRUE(fs::exists(folder_ / ".reprise-1-3.tmp"));
}

// Writes a file of tensors with the same character in all of its elements.
void write_state(const fs::path& file, char character) {
  const std::string large(9'000, character), small(40, character);
  write_tensors(file, {{"format", "reprise.state"}},
                {{"large", "U8", {9'000}, std::as_bytes(std::span(large))},
                 {"small", "F32", {10}, std::as_bytes(std::span(small))},
                 {"none", "F32", {0}, {}}});
}

// Returns the character of a whole file; fails if it is damaged or mixed of two.
char read_state(const fs::path& file) {
  const TensorFile opened(file);
  EXPECT_NO_THROW(opened.verify());
  std::string all;
  for (const TensorEntry& tensor : opened.table().tensors) {
    std::string text(static_cast<size_t>(tensor.bytes.count()), '\0');
    opened.read(tensor, std::as_writable_bytes(std::span(text)));
    all += text;
  }
  EXPECT_EQ(all, std::string(9'040, all.at(0)));
  return all.at(0);
}

TEST_F(FileFaults, AFileOfTensorsIsTheOldOrTheNewOne) {
  const fs::path state = folder_ / "state.safetensors";
  int64_t killed = 0, failed = 0;
  for (const FileFault fault : {FileFault::kKillBefore, FileFault::kKillHalf}) {
    for (int64_t call = 0;; ++call) {
      SCOPED_TRACE("killed at call " + std::to_string(call));
      ASSERT_LT(call, 100);
      write_state(state, 'o');
      const pid_t child = ::fork();
      if (child == 0) {
        const SystemCallFault armed(fault, call);
        write_state(state, 'n');
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      const char found = read_state(state);
      EXPECT_TRUE(found == 'o' || found == 'n');
      if (!WIFSIGNALED(status)) {
        EXPECT_EQ(found, 'n');
        break;
      }
      ++killed;
    }
  }
  for (const FileFault fault : {FileFault::kError, FileFault::kShort}) {
    for (int64_t call = 0;; ++call) {
      SCOPED_TRACE("failed at call " + std::to_string(call));
      ASSERT_LT(call, 100);
      write_state(state, 'o');
      bool refused = false, happened = false;
      {
        const SystemCallFault armed(fault, call, ENOSPC);
        try {
          write_state(state, 'n');
        } catch (const InputError& error) {
          refused = true;
          EXPECT_EQ(error.where().file, state.string());
        }
        happened = armed.happened();
      }
      EXPECT_EQ(read_state(state), refused ? 'o' : 'n');
      EXPECT_EQ(entries(), 2u);
      if (!happened) break;
      ++failed;
    }
  }
  EXPECT_GE(killed, 18) << "open, lock, chmod, a write a piece, sync, close, rename";
  std::printf("killed %lld times, %lld calls failed\n", static_cast<long long>(killed),
              static_cast<long long>(failed));
}

TEST_F(FileFaults, ManyWritersOfOneFileLeaveOneWholeFile) {
  constexpr int kWriters = 4, kTimes = 50;
  for (int writer = 0; writer < kWriters; ++writer) {
    if (::fork() != 0) continue;
    write_in_child(file_, std::string(2'000, static_cast<char>('a' + writer)), kTimes);
  }
  for (int writer = 0; writer < kWriters; ++writer) {
    int status = 0;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  const std::string content = read_file(file_);
  EXPECT_TRUE(content == std::string(2'000, content.at(0)));
  EXPECT_EQ(entries(), 1u);
}

}  // namespace
}  // namespace reprise::testing
