// Tests the disk as a memory: bytes come back as they were, in the order of the queue, and failures
// are told with the file, the call and what to do.
#include "runtime/transfer/disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "faulty_disk.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/offload.h"
#include "runtime/transfer/checksum.h"
#include "runtime/transfer/file_space.h"

namespace reprise::runtime {
namespace {

using internal::transfer::Block;
using internal::transfer::checksum;
using internal::transfer::Disk;
using internal::transfer::DiskOptions;
using internal::transfer::FileSpace;
using internal::transfer::ParcelPtr;
using internal::transfer::TicketPtr;
using testing::DiskFault;
using testing::FaultyDisk;

namespace fs = std::filesystem;

class DiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    folder_ = fs::temp_directory_path() / ("reprise-disk-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    EXPECT_TRUE(fs::is_empty(folder_)) << "a file was left";
    fs::remove_all(folder_);
  }
  std::string folder() const { return folder_.string(); }

  fs::path folder_;
};

std::vector<char> bytes_of(size_t count, unsigned seed) {
  std::vector<char> bytes(count);
  std::mt19937 random(seed);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

Block block(std::vector<char>& bytes) { return {bytes.data(), static_cast<int64_t>(bytes.size())}; }

// The error of this call, or an empty text.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_F(DiskTest, BytesComeBackAsTheyWere) {
  for (const bool one_queue : {false, true}) {
    Disk disk(folder(), {.block = 8192, .one_queue = one_queue});
    for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{8192},
                              size_t{8193}, size_t{100'000}}) {
      std::vector<char> a = bytes_of(size, 1), b = bytes_of(777, 2);
      std::vector<char> c(a.size()), d(b.size());
      const ParcelPtr place = disk.place(static_cast<int64_t>(a.size() + b.size()));
      const TicketPtr out = disk.out({block(a), block(b)}, place, {});
      const TicketPtr in = disk.in(place, {block(c), block(d)}, {out});
      in->wait();
      EXPECT_TRUE(in->is_over());
      EXPECT_EQ(a, c);
      EXPECT_EQ(b, d);
    }
    EXPECT_TRUE(disk.empty());
  }
}

TEST_F(DiskTest, ManyCopiesAtOnceAndRandomDelays) {
  FaultyDisk calls;
  Disk disk(folder(), {.block = 4096});
  calls.delay_up_to(std::chrono::milliseconds(3));
  std::vector<std::vector<char>> from, to;
  std::vector<ParcelPtr> places;
  std::vector<TicketPtr> out, in;
  for (unsigned k = 0; k < 40; ++k) from.push_back(bytes_of(1000 + 313 * k, k));
  for (auto& bytes : from) {
    to.emplace_back(bytes.size());
    places.push_back(disk.place(static_cast<int64_t>(bytes.size())));
    out.push_back(disk.out({block(bytes)}, places.back(), {}));
  }
  for (size_t k = from.size(); k-- > 0;) {
    in.push_back(disk.in(places[k], {block(to[k])}, {out[k]}));
  }
  for (const TicketPtr& ticket : in) ticket->wait();
  EXPECT_EQ(from, to);
}

TEST_F(DiskTest, PlacesAreUsedAgain) {
  FileSpace space;
  EXPECT_EQ(space.take(4), 0);
  EXPECT_EQ(space.take(8), 4);
  EXPECT_EQ(space.take(4), 12);
  space.give_back(4, 8);
  EXPECT_EQ(space.take(3), 4);
  EXPECT_EQ(space.take(6), 16) << "the gap is too small";
  space.give_back(4, 3);
  space.give_back(0, 4);
  EXPECT_EQ(space.take(12), 0) << "gaps that touch are one";
  for (const auto& [at, size] : {std::pair{0, 12}, {16, 6}, {12, 4}}) space.give_back(at, size);
  EXPECT_TRUE(space.empty());
}

TEST_F(DiskTest, RandomPlacesNeverOverlap) {
  std::mt19937 random(5);
  FileSpace space;
  std::map<int64_t, int64_t> used;
  for (int k = 0; k < 4000; ++k) {
    if (!used.empty() && random() % 2 == 0) {
      auto some = used.begin();
      std::advance(some, random() % used.size());
      space.give_back(some->first, some->second);
      used.erase(some);
      continue;
    }
    const int64_t size = 1 + random() % 20, at = space.take(size);
    const auto [place, fresh] = used.emplace(at, size);
    ASSERT_TRUE(fresh);
    if (place != used.begin()) {
      const auto before = std::prev(place);
      ASSERT_LE(before->first + before->second, at);
    }
    const auto behind = std::next(place);
    const int64_t next = behind == used.end() ? space.end() : behind->first;
    ASSERT_LE(at + size, next);
    ASSERT_LE(at + size, space.end());
  }
  for (const auto& [at, size] : used) space.give_back(at, size);
  EXPECT_TRUE(space.empty());
}

TEST_F(DiskTest, AChecksumNoticesEveryChangedBit) {
  for (const size_t size : {size_t{1}, size_t{8}, size_t{31}, size_t{200}}) {
    std::vector<char> bytes = bytes_of(size, 9);
    const uint64_t sum = checksum(bytes.data(), bytes.size());
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      EXPECT_NE(checksum(bytes.data(), bytes.size()), sum) << bit;
      bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    }
    EXPECT_NE(checksum(bytes.data(), size - 1), sum);
  }
}

TEST_F(DiskTest, BuffersCountAsDeviceBytes) {
  const int64_t before = memory_count(c10::kCPU).live;
  const Disk disk(folder(), {.block = 1 << 16});
  EXPECT_EQ(memory_count(c10::kCPU).live - before, (2 << 16) + 4096);
}

TEST_F(DiskTest, TheFileHasNoName) {
  const Disk disk(folder());
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DiskTest, AKilledProcessLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    Disk disk(folder());
    std::vector<char> bytes = bytes_of(100'000, 1);
    const ParcelPtr place = disk.place(static_cast<int64_t>(bytes.size()));
    disk.out({block(bytes)}, place, {})->wait();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(fs::is_empty(folder_));
}

// An OldFileSystem is a file system without files that have no name.
class OldFileSystem final : public internal::transfer::FileCalls {
 public:
  OldFileSystem(bool direct, bool unlinks) : direct_(direct), unlinks_(unlinks), scope_(*this) {}
  int open(const std::string& path, int flags) override {
    if (!direct_ && (flags & O_DIRECT) != 0) {
      errno = EINVAL;
      return -1;
    }
    if ((flags & O_TMPFILE) == O_TMPFILE) {
      errno = EOPNOTSUPP;
      return -1;
    }
    return FileCalls::open(path, flags);
  }
  int unlink(const std::string& path) override {
    if (unlinks_) return FileCalls::unlink(path);
    FileCalls::unlink(path);
    errno = EACCES;
    return -1;
  }
  int allocate(int, int64_t, int64_t) override {
    errno = EOPNOTSUPP;
    return -1;
  }

 private:
  const bool direct_, unlinks_;
  internal::transfer::FileCallsScope scope_;
};

TEST_F(DiskTest, OldFileSystemsServe) {
  for (const bool direct : {false, true}) {
    OldFileSystem calls(direct, true);
    Disk disk(folder());
    EXPECT_TRUE(fs::is_empty(folder_));
    EXPECT_LE(disk.is_direct(), direct);
    std::vector<char> a = bytes_of(5000, 1), b(a.size());
    const ParcelPtr place = disk.place(5000);
    const TicketPtr out = disk.out({block(a)}, place, {});
    disk.in(place, {block(b)}, {out})->wait();
    EXPECT_EQ(a, b);
  }
  OldFileSystem calls(true, false);
  EXPECT_NE(error_of([&] { Disk disk(folder()); }).find("unlink, errno 13"), std::string::npos);
}

TEST_F(DiskTest, WrongDirectoriesAreNamed) {
  const std::string gone = error_of([&] { Disk disk(folder() + "/gone"); });
  EXPECT_NE(gone.find("/gone'"), std::string::npos) << gone;
  EXPECT_NE(gone.find("errno 2)"), std::string::npos) << gone;
  EXPECT_NE(gone.find("name a directory that exists"), std::string::npos) << gone;
  const fs::path file = folder_ / "file";
  std::ofstream(file) << "text";
  EXPECT_NE(error_of([&] { Disk disk(file.string()); }).find("errno 20)"), std::string::npos);
  fs::remove(file);
  EXPECT_NE(error_of([&] { Disk disk(folder(), {.block = 5000}); }).find("multiple of 4096"),
            std::string::npos);
}

TEST_F(DiskTest, EveryCallMayFail) {
  FaultyDisk calls;
  int64_t failures = 0;
  for (const DiskFault fault :
       {DiskFault::kNoSpace, DiskFault::kError, DiskFault::kNothing, DiskFault::kFlipsBit}) {
    for (int64_t k = 1;; ++k) {
      std::vector<char> a = bytes_of(20'000, 1), b(a.size());
      calls.arm(k, fault);
      const std::string error = error_of([&] {
        Disk disk(folder(), {.block = 8192});
        const ParcelPtr place = disk.place(20'000);
        const TicketPtr out = disk.out({block(a)}, place, {});
        disk.in(place, {block(b)}, {out})->wait();
      });
      calls.disarm();
      if (!calls.failed()) {
        EXPECT_EQ(error, "");
        EXPECT_EQ(a, b);
        break;
      }
      if (error.empty()) {  // a bit of a write, or a call that cannot return another
        EXPECT_EQ(a, b);
        continue;
      }
      ++failures;
      EXPECT_NE(error.find(folder()), std::string::npos) << error;
      const bool says_what =
          error.find("errno ") != std::string::npos || error.find("checksum") != std::string::npos;
      EXPECT_TRUE(says_what) << error;
      EXPECT_NE(error.find("; "), std::string::npos) << error;
    }
  }
  EXPECT_GE(failures, 20);
  EXPECT_EQ(calls.opened(), calls.closed());
}

TEST_F(DiskTest, CallsThatEndEarlyGoOn) {
  FaultyDisk calls;
  for (int64_t k = 1; k < 12; ++k) {
    Disk disk(folder(), {.block = 32768});
    std::vector<char> a = bytes_of(100'000, 1), b(a.size());
    calls.arm(k, DiskFault::kEndsEarly);
    const ParcelPtr place = disk.place(100'000);
    const TicketPtr out = disk.out({block(a)}, place, {});
    EXPECT_EQ(error_of([&] { disk.in(place, {block(b)}, {out})->wait(); }), "");
    EXPECT_EQ(a, b);
    calls.disarm();
  }
}

TEST_F(DiskTest, ACopyBehindAFailedOneFails) {
  FaultyDisk calls;
  Disk disk(folder(), {.block = 8192});
  std::vector<char> a = bytes_of(5000, 1), b(a.size());
  const ParcelPtr place = disk.place(5000);
  calls.arm(1, DiskFault::kError);
  const TicketPtr out = disk.out({block(a)}, place, {});
  const TicketPtr in = disk.in(place, {block(b)}, {out});
  const std::string first = error_of([&] { out->wait(); });
  EXPECT_NE(first.find("pwrite"), std::string::npos);
  EXPECT_EQ(error_of([&] { in->wait(); }), first);
  EXPECT_EQ(error_of([&] { out->wait(); }), first) << "each time";
  calls.disarm();
  const TicketPtr again = disk.out({block(a)}, place, {});
  disk.in(place, {block(b)}, {again})->wait();
  EXPECT_EQ(a, b) << "the disk goes on";
}

TEST_F(DiskTest, ACancelledCopyEndsSoon) {
  FaultyDisk calls;
  Disk disk(folder(), {.block = 4096});
  calls.delay_up_to(std::chrono::milliseconds(20));
  std::vector<char> a = bytes_of(1 << 20, 1);
  const ParcelPtr place = disk.place(1 << 20);
  std::vector<TicketPtr> tickets;
  for (int k = 0; k < 5; ++k) tickets.push_back(disk.out({block(a)}, place, {}));
  for (const TicketPtr& ticket : tickets) ticket->cancel();
  EXPECT_LT(calls.bytes_written(), 5 << 20);
  EXPECT_NE(error_of([&] { tickets.back()->wait(); }).find("cancelled"), std::string::npos);
}

TEST_F(DiskTest, AChildOfForkIsRefused) {
  Disk disk(folder());
  std::vector<char> a = bytes_of(5000, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool told = error_of([&] { disk.place(5000); }).find("fork()") != std::string::npos;
    { const Disk gone = Disk(folder()); }  // one of its own works
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(DiskTest, MeasuredBandwidths) {
  const int64_t before = memory_count(c10::kCPU).live;
  const Machine machine = measure_disk(folder());
  EXPECT_EQ(memory_count(c10::kCPU).live, before);
  ASSERT_EQ(machine.memories.size(), 2U);
  EXPECT_EQ(machine.memories[1].name, "disk");
  EXPECT_GT(machine.memories[1].capacity->count(), 0);
  ASSERT_EQ(machine.channels.size(), 2U);
  for (const Channel& channel : machine.channels) {
    EXPECT_GT(channel.bytes_per_second, 1'000'000);
    EXPECT_GT(channel.latency.count(), 0);
  }
}

}  // namespace
}  // namespace reprise::runtime
