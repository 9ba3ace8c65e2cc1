// Tests pack() at its edges, and on blocks packed by hand.
#include "reprise/pack/pack.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::testing {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

PackOptions bytewise() {
  PackOptions options;
  options.alignment = Bytes(1);
  return options;
}

// Returns the JSON pointer of the InputError.
std::string refused_at(const std::vector<Block>& blocks, const PackOptions& options = {}) {
  try {
    pack(blocks, options);
  } catch (const InputError& error) {
    return "at " + error.where().pointer;
  }
  return "accepted";
}

TEST(Pack, NoBlocksTakeNothing) {
  const Packing packing = pack({});
  EXPECT_TRUE(packing.offsets.empty());
  EXPECT_EQ(packing.height, Bytes(0));
  EXPECT_EQ(packing.live_bytes, Bytes(0));
  EXPECT_TRUE(packing.proven_optimal());
}

TEST(Pack, OneBlockIsRoundedUp) {
  const Packing packing = pack(std::vector<Block>{{Bytes(65), 3, 4}});
  EXPECT_EQ(packing.offsets, std::vector{Bytes(0)});
  EXPECT_EQ(packing.height, Bytes(128));
  EXPECT_EQ(packing.live_bytes, Bytes(128));
}

TEST(Pack, BlocksOfNothingStandAtZero) {
  const Packing packing = pack(
      std::vector<Block>{{Bytes(0), 0, 9}, {Bytes(100), 4, 4}, {Bytes(1), 0, 9}, {Bytes(0), 5, 5}});
  EXPECT_EQ(packing.offsets, std::vector(4, Bytes(0)));
  EXPECT_EQ(packing.height, Bytes(64));
}

TEST(Pack, EqualTimesAreStacked) {
  const std::vector<Block> blocks(5, {Bytes(10), -7, 7});
  const Packing packing = pack(blocks, bytewise());
  EXPECT_EQ(packing.height, Bytes(50));
  EXPECT_TRUE(packing.proven_optimal());
}

TEST(Pack, OneBlockMayFollowAnotherAtTheSameTime) {
  const Packing packing =
      pack(std::vector<Block>{{Bytes(10), 0, 5}, {Bytes(10), 5, 6}}, bytewise());
  EXPECT_EQ(packing.height, Bytes(10));
}

TEST(Pack, AnyTimesWillDo) {
  const int64_t least = std::numeric_limits<int64_t>::min();
  const Packing packing = pack(
      std::vector<Block>{
          {Bytes(1), least, kLargest}, {Bytes(2), least, 0}, {Bytes(3), 0, kLargest}},
      bytewise());
  EXPECT_EQ(packing.height, Bytes(4));
}

TEST(Pack, AlignmentNeedNotBeAPowerOfTwo) {
  PackOptions options;
  options.alignment = Bytes(48);
  const std::vector<Block> blocks = {{Bytes(48), 0, 2}, {Bytes(49), 1, 3}, {Bytes(1), 2, 4}};
  const Packing packing = pack(blocks, options);
  EXPECT_EQ(packing.height, Bytes(144));
  for (const Bytes offset : packing.offsets) EXPECT_EQ(offset.count() % 48, 0);
}

TEST(Pack, LiveBytesAreThoseOfPack) {
  const std::vector<Block> blocks = {{Bytes(1), 0, 2}, {Bytes(65), 1, 3}, {Bytes(1000), 3, 4}};
  EXPECT_EQ(live_bytes(blocks), Bytes(1024));
  EXPECT_EQ(live_bytes(blocks), pack(blocks).live_bytes);
  EXPECT_EQ(live_bytes(blocks, Bytes(1)), Bytes(1000));
}

TEST(Pack, WrongBlocksAreNamed) {
  EXPECT_EQ(refused_at({{Bytes(1), 0, 1}, {Bytes(-1), 0, 1}}), "at /1/bytes");
  EXPECT_EQ(refused_at({{Bytes(1), 2, 1}}), "at /0/end");
  EXPECT_EQ(refused_at({{Bytes(-1), 0, 0}}), "at /0/bytes");
  for (const int64_t alignment : {int64_t{0}, int64_t{-64}, -kLargest}) {
    PackOptions options;
    options.alignment = Bytes(alignment);
    EXPECT_EQ(refused_at({}, options), "at ");
  }
}

TEST(Pack, SumsThatDoNotFitAreRefused) {
  EXPECT_EQ(refused_at({{Bytes(kLargest), 0, 1}}), "at ");  // rounded up
  EXPECT_EQ(refused_at({{Bytes(kLargest), 0, 1}}, bytewise()), "accepted");
  EXPECT_EQ(refused_at({{Bytes(kLargest / 2 + 1), 0, 1}, {Bytes(kLargest / 2 + 1), 5, 6}}), "at ");
  PackOptions coarse;
  coarse.alignment = Bytes(kLargest);
  EXPECT_EQ(refused_at({{Bytes(1), 0, 1}}, coarse), "accepted");
  EXPECT_EQ(refused_at({{Bytes(1), 0, 1}, {Bytes(1), 0, 1}}, coarse), "at ");
}

TEST(Pack, LimitsOfZeroStillGiveAPacking) {
  const std::vector<Block> blocks = {{Bytes(3), 0, 4}, {Bytes(5), 2, 7}, {Bytes(4), 5, 9}};
  PackOptions options = bytewise();
  options.steps = 0;
  options.time_limit = Nanos(0);
  EXPECT_TRUE(verify_packing(blocks, pack(blocks, options), Bytes(1)).empty());
}

// The blocks are like values that are stored over the whole step and nested in each other.
TEST(Pack, NestedBlocksAreOneStack) {
  std::vector<Block> blocks;
  for (int64_t k = 0; k < 100; ++k) blocks.push_back({Bytes(1 + k % 7), k, 200 - k});
  const Packing packing = pack(blocks, bytewise());
  EXPECT_EQ(packing.height, packing.live_bytes);
  EXPECT_EQ(packing.method, "nesting");
}

class VerifyPacking : public ::testing::Test {
 protected:
  // There are three blocks of 10 bytes. Block 0 overlaps block 1, and 1 overlaps 2.
  const std::vector<Block> blocks_ = {{Bytes(10), 0, 2}, {Bytes(10), 1, 4}, {Bytes(10), 2, 5}};
  Packing packing_ = pack(blocks_, bytewise());

  std::vector<PackingViolation> violations() const {
    return verify_packing(blocks_, packing_, Bytes(1));
  }
};

TEST_F(VerifyPacking, AcceptsWhatIsRight) { EXPECT_TRUE(violations().empty()); }

TEST_F(VerifyPacking, NamesBlocksThatOverlap) {
  packing_.offsets = {Bytes(0), Bytes(9), Bytes(19)};
  packing_.height = Bytes(29);
  ASSERT_EQ(violations().size(), 1u);
  EXPECT_EQ(violations()[0].block, 0);
  EXPECT_EQ(violations()[0].other, 1);
  packing_.offsets = {Bytes(0), Bytes(0), Bytes(10)};
  packing_.height = Bytes(20);
  ASSERT_EQ(violations().size(), 1u);
}

TEST_F(VerifyPacking, NamesWhatIsUnderneathATallOne) {
  const std::vector<Block> blocks = {{Bytes(100), 0, 9}, {Bytes(10), 1, 2}, {Bytes(10), 3, 4}};
  Packing packing;
  packing.offsets = {Bytes(0), Bytes(20), Bytes(50)};
  packing.height = packing.live_bytes = packing.lower_bound = Bytes(110);
  packing.height = Bytes(100);
  packing.lower_bound = Bytes(100);
  const auto found = verify_packing(blocks, packing, Bytes(1));
  ASSERT_GE(found.size(), 2u);
  EXPECT_EQ(found[0].other, 1);
  EXPECT_EQ(found[1].other, 2);
}

TEST_F(VerifyPacking, NamesFalseClaims) {
  const Packing right = packing_;
  packing_.height += Bytes(1);
  EXPECT_FALSE(violations().empty());
  packing_ = right;
  packing_.live_bytes -= Bytes(1);
  EXPECT_FALSE(violations().empty());
  packing_ = right;
  packing_.lower_bound += Bytes(1);
  EXPECT_FALSE(violations().empty());
  packing_ = right;
  packing_.offsets.pop_back();
  EXPECT_FALSE(violations().empty());
  packing_ = right;
  packing_.offsets[0] = Bytes(-10);
  EXPECT_FALSE(violations().empty());
  EXPECT_FALSE(verify_packing(blocks_, right, Bytes(3)).empty());
  EXPECT_FALSE(verify_packing(blocks_, right, Bytes(0)).empty());
}

}  // namespace
}  // namespace reprise::testing
