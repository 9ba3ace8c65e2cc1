// This is the folder that tests of a disk behind the device share, and the disks that they plan
// for.
#pragma once

#include <unistd.h>

#include <filesystem>

#include "fixture.h"
#include "reprise/model/machine.h"
#include "reprise/runtime/offload.h"

namespace reprise::runtime::testing {

// A disk for planning: how long copies really take does not matter for bits and bytes.
inline Machine disk_of(int64_t bytes_per_second, bool turns = false) {
  Machine machine;
  machine.memories.push_back({"disk"});
  machine.channels = {{.from = 0, .to = 1, .bytes_per_second = bytes_per_second},
                      {.from = 1,
                       .to = 0,
                       .bytes_per_second = bytes_per_second,
                       .latency = {},
                       .shares = turns ? 0 : -1}};
  return machine;
}

inline constexpr int64_t kFast = 100'000'000'000;

// Every test ends with an empty folder.
class WithDisk : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    folder_ =
        std::filesystem::temp_directory_path() / fmt::format("reprise-offload-{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a file was left";
    std::filesystem::remove_all(folder_);
    RuntimeTest::TearDown();
  }

  OffloadOptions offload(const Machine& machine) const {
    return {.to = "disk:" + folder_.string(), .machine = machine, .block = Bytes(1 << 16)};
  }

  std::filesystem::path folder_;
};

}  // namespace reprise::runtime::testing
