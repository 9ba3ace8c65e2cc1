// Tests FreeList: ranges that are handed out never overlap, and what comes back is one range again.
#include "runtime/arena/free_list.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace reprise::runtime {
namespace {

using internal::arena::FreeList;

TEST(FreeListTest, GivesTheSmallestRangeThatIsLargeEnough) {
  FreeList list(100);
  ASSERT_EQ(list.take(30), 0);
  ASSERT_EQ(list.take(10), 30);
  ASSERT_EQ(list.take(60), 40);
  EXPECT_EQ(list.take(1), std::nullopt);
  list.give_back(0, 30);
  list.give_back(40, 60);
  EXPECT_EQ(list.take(20), 0) << "the range of 30 is smaller than that of 60";
  EXPECT_EQ(list.take(61), std::nullopt);
  list.give_back(30, 10);
  EXPECT_EQ(list.take(80), 20) << "three ranges are one";
}

TEST(FreeListTest, HasNothingToGiveWithoutBytes) { EXPECT_EQ(FreeList(0).take(1), std::nullopt); }

TEST(FreeListTest, NeverHandsARangeOutTwice) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 50; ++repeat) {
    constexpr int64_t kBytes = 1000;
    FreeList list(kBytes);
    std::map<int64_t, int64_t> taken;  // sizes by offset
    for (int step = 0; step < 400; ++step) {
      if (!taken.empty() && random() % 2 == 0) {
        const auto one = std::next(taken.begin(), static_cast<int64_t>(random() % taken.size()));
        list.give_back(one->first, one->second);
        taken.erase(one);
        continue;
      }
      const auto bytes = static_cast<int64_t>(1 + random() % 120);
      const std::optional<int64_t> offset = list.take(bytes);
      if (!offset) continue;
      const auto after = taken.lower_bound(*offset);
      ASSERT_GE(*offset, 0);
      ASSERT_LE(*offset + bytes, kBytes);
      if (after != taken.end()) {
        ASSERT_LE(*offset + bytes, after->first);
      }
      if (after != taken.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + before->second, *offset);
      }
      taken[*offset] = bytes;
    }
    for (const auto& [offset, bytes] : taken) list.give_back(offset, bytes);
    EXPECT_EQ(list.take(kBytes), 0) << "everything is free again, in one range";
  }
}

}  // namespace
}  // namespace reprise::runtime
