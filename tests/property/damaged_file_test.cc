// Tries every truncation and every change of one byte of small files of every format. Each is
// refused with the place, or read as a value that keeps the promises of tests/fuzz/targets.h (a
// plan is one that verify() judges), in little time and memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "fuzz/targets.h"
#include "reprise/io/json.h"

namespace reprise::fuzz {
namespace {

namespace fs = std::filesystem;

// These bytes end numbers, strings and containers, begin others, or are no text at all.
constexpr unsigned char kBytes[] = {'"', '\\', '{', '}', '[',  ']',  ',',  ':',  '-',  '.', '0',
                                    '9', 'e',  'x', ' ', '\n', 0x00, 0x7f, 0x80, 0xc3, 0xff};

class DamagedFiles : public ::testing::TestWithParam<const char*> {
 protected:
  // Counts the inputs. Fails when a promise is broken or one input takes long.
  void run(const Target& target, const std::string& bytes) {
    const auto start = std::chrono::steady_clock::now();
    ++inputs_;
    EXPECT_NO_THROW(target.run(bytes)) << bytes;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << bytes;
  }
  int64_t inputs_ = 0;
};

int64_t resident_kilobytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST_P(DamagedFiles, AreRefusedOrKeepThePromises) {
  [[maybe_unused]] const int64_t before =
      resident_kilobytes();  // sanitizers have memory of their own
  for (const Target& target : targets()) {
    if (std::string(target.name) != GetParam()) continue;
    const fs::path folder = fs::path(REPRISE_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
    for (const auto& entry : fs::directory_iterator(folder)) {
      // Files with this extension were written by hand. Files that the fuzzer found have other
      // names.
      if (entry.path().extension() != ".json") continue;
      const std::string good = read_file(entry.path());
      if (good.size() > 1'200) continue;
      SCOPED_TRACE(entry.path().string());
      for (size_t size = 0; size < good.size(); ++size) run(target, good.substr(0, size));
      for (size_t at = 0; at < good.size() && !HasFailure(); ++at) {
        std::string bytes = good;
        for (const unsigned char byte : kBytes) {
          bytes[at] = static_cast<char>(byte);
          run(target, bytes);
        }
      }
    }
  }
  EXPECT_GT(inputs_, 3'000);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(resident_kilobytes() - before, 64 * 1024);
#endif
  std::printf("%s: %lld damaged files\n", GetParam(), static_cast<long long>(inputs_));
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedFiles,
                         ::testing::Values("chain", "graph", "plan", "frontier", "profile",
                                           "run_log", "problem", "check", "pipeline",
                                           "pipeline_plan"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace reprise::fuzz
