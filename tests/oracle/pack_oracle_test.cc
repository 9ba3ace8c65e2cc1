// Compares packings and the exact search with exhaustive search over all offsets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <random>
#include <vector>

#include "oracle/exhaustive_packing.h"
#include "pack/effort.h"
#include "pack/exact_search.h"
#include "pack/sections.h"
#include "reprise/pack/pack.h"
#include "support/random_blocks.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

using internal::packing::Branching;
using internal::packing::Effort;
using internal::packing::ExactRules;
using internal::packing::ExactSearch;

struct Family {
  const char* name;
  int cases;
  std::function<std::vector<Block>(std::mt19937_64&)> make;
};

const std::vector<Family>& families() {
  const auto random = [](RandomBlocksOptions options) {
    return [options](std::mt19937_64& engine) { return random_blocks(engine, options); };
  };
  const auto full = [](int64_t times, int64_t bytes, int64_t max_time) {
    return [=](std::mt19937_64& engine) { return full_blocks(engine, times, bytes, max_time); };
  };
  static const std::vector<Family> kFamilies = {
      {"any", 200, random({.blocks = 7, .times = 6, .max_time = 6, .max_bytes = 5, .empty = true})},
      {"short", 100, random({.blocks = 10, .times = 9, .max_time = 4, .max_bytes = 3})},
      {"full", 200, full(6, 6, 4)},
      {"full, longer", 200, full(8, 5, 5)},
  };
  return kFamilies;
}

Block block(int64_t bytes, int64_t begin, int64_t end) { return {Bytes(bytes), begin, end}; }

// All times are full, and yet no packing is as low as the live bytes.
const std::vector<std::vector<Block>>& above_the_live_bytes() {
  static const std::vector<std::vector<Block>> kCases = {
      {block(3, 0, 1), block(1, 1, 5), block(2, 5, 8), block(2, 1, 6), block(3, 6, 8),
       block(2, 0, 4), block(1, 4, 6), block(1, 4, 5)},
      {block(4, 0, 2), block(2, 2, 3), block(3, 3, 6), block(2, 2, 4), block(3, 4, 6),
       block(2, 0, 1), block(1, 1, 4), block(1, 1, 3)},
      {block(4, 0, 3), block(1, 3, 6), block(3, 6, 8), block(2, 3, 5), block(3, 5, 8),
       block(1, 3, 6), block(2, 0, 4), block(1, 4, 6), block(1, 4, 5)},
      {block(3, 0, 1), block(2, 1, 4), block(4, 4, 5), block(2, 1, 2), block(1, 2, 5),
       block(1, 0, 3), block(2, 3, 4), block(1, 0, 1), block(1, 2, 3)},
      {block(1, 0, 5), block(4, 5, 10), block(4, 0, 4), block(3, 4, 9), block(2, 4, 5),
       block(3, 9, 10), block(3, 0, 2), block(1, 2, 5), block(1, 2, 7), block(1, 2, 4),
       block(1, 7, 10)},
  };
  return kCases;
}

template <class Check>
void for_blocks(const Check& check) {
  for (const std::vector<Block>& blocks : above_the_live_bytes()) {
    SCOPED_TRACE(describe(blocks));
    check(blocks);
  }
  for (const Family& family : families()) {
    constexpr uint64_t kSeed = 11;
    std::mt19937_64 random(kSeed);
    for (int number = 0; number < test_scale(family.cases); ++number) {
      const std::vector<Block> blocks = family.make(random);
      SCOPED_TRACE(fmt::format("family {}, seed {}, case {}: {}", family.name, kSeed, number,
                               describe(blocks)));
      check(blocks);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(PackOracle, HeightsAreTheLeast) {
  int64_t above = 0, cases = 0;
  PackOptions options;
  options.alignment = Bytes(1);
  for_blocks([&](const std::vector<Block>& blocks) {
    const int64_t least = least_height_of_any_packing(blocks);
    const Packing packing = pack(blocks, options);
    ASSERT_EQ(packing.height.count(), least);
    ASSERT_TRUE(packing.proven_optimal());
    ASSERT_LE(packing.live_bytes.count(), least);
    above += packing.live_bytes.count() < least;
    ++cases;
  });
  std::cout << above << " of " << cases << " optima are above the live bytes\n";
  EXPECT_GE(above, static_cast<int64_t>(above_the_live_bytes().size()));
}

// Makes a part of the blocks with times for sections, since the search needs no reduction.
internal::packing::Part part_of(const std::vector<Block>& blocks, int32_t times) {
  internal::packing::Part part;
  part.sections = times;
  for (const Block& block : blocks) {
    if (block.bytes == Bytes(0) || block.begin == block.end) continue;
    part.items.push_back({block.bytes.count(), static_cast<int32_t>(block.begin),
                          static_cast<int32_t>(block.end - 1)});
  }
  return part;
}

// The rules are switched in these ways: each off alone, each on alone, all on, and all off.
std::vector<ExactRules> rule_sets() {
  std::vector<ExactRules> sets;
  for (int set = 0; set < 16; ++set) {
    sets.push_back({.dominance = (set & 1) != 0,
                    .split = (set & 2) != 0,
                    .table = (set & 4) != 0,
                    .tighten = (set & 8) != 0});
  }
  return sets;
}

TEST(PackOracle, ExactSearchDecidesEveryCapacityWithAnyRules) {
  for_blocks([&](const std::vector<Block>& blocks) {
    const int64_t least = least_height_of_any_packing(blocks);
    const internal::packing::Part part = part_of(blocks, 10);
    uint64_t seed = 0;
    for (const ExactRules& rules : rule_sets()) {
      ExactSearch search(part, rules);
      for (int64_t capacity = std::max<int64_t>(0, least - 2); capacity <= least + 1; ++capacity) {
        for (const bool floors : {false, true}) {
          const Branching branching = ++seed % 4 == 0 ? Branching::kLongest : Branching::kRandom;
          constexpr int64_t kSteps = int64_t{1} << 40;
          Effort effort(kSteps, Nanos(int64_t{1} << 60));
          const auto outcome = search.run(capacity, {branching, floors, seed}, kSteps, effort);
          ASSERT_EQ(outcome, capacity >= least ? ExactSearch::SearchEnd::kFound
                                               : ExactSearch::SearchEnd::kNone)
              << "capacity " << capacity << ", least " << least;
        }
      }
    }
  });
}

}  // namespace
}  // namespace reprise::testing
