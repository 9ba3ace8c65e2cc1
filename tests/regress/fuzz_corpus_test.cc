// These are inputs that a fuzzer found worth keeping, and inputs that broke a promise once. No
// promise is broken by any of them today.
#include <gtest/gtest.h>

#include <filesystem>

#include "fuzz/targets.h"
#include "reprise/io/json.h"

namespace reprise::fuzz {
namespace {

TEST(FuzzCorpus, EveryKeptInputKeepsThePromises) {
  for (const Target& target : targets()) {
    int inputs = 0;
    const std::filesystem::path folder =
        std::filesystem::path(REPRISE_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      SCOPED_TRACE(entry.path().string());
      ++inputs;
      EXPECT_NO_THROW(target.run(read_file(entry.path())));
    }
    EXPECT_GE(inputs, 3) << folder;
  }
}

// A folder with another name would never be read.
TEST(FuzzCorpus, TheFoldersAreThoseOfTheTargets) {
  const auto corpus = std::filesystem::path(REPRISE_SOURCE_DIR) / "tests/fuzz/corpus";
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    bool known = false;
    for (const Target& target : targets()) known |= entry.path().filename() == target.name;
    EXPECT_TRUE(known) << entry.path() << " is the folder of no target";
  }
}

}  // namespace
}  // namespace reprise::fuzz
