// Checks laws of placements in pages, on random blocks and on training steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <random>
#include <vector>

#include "pack/ranges.h"
#include "reprise/pack/pages.h"
#include "support/random_blocks.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

// Compares byte ranges with byte ranges, and uses neither verify_pages() nor its sweep.
void expect_apart(const std::vector<Block>& blocks, const PagedPacking& paged) {
  for (size_t a = 0; a < blocks.size(); ++a) {
    Bytes sum;
    for (const Extent& one : paged.extents[a]) {
      ASSERT_LE(one.offset + one.bytes, paged.height);
      sum += one.bytes;
      for (size_t b = 0; b < a; ++b) {
        const bool together =
            std::max(blocks[a].begin, blocks[b].begin) < std::min(blocks[a].end, blocks[b].end);
        if (!together) continue;
        for (const Extent& other : paged.extents[b]) {
          ASSERT_TRUE(one.offset + one.bytes <= other.offset ||
                      other.offset + other.bytes <= one.offset)
              << "blocks " << b << " and " << a;
        }
      }
    }
    if (blocks[a].begin < blocks[a].end) {
      ASSERT_GE(sum, blocks[a].bytes);
    }
  }
}

int64_t most_blocks_at_once(const std::vector<Block>& blocks) {
  int64_t most = 0;
  for (const Block& at : blocks) {
    most = std::max<int64_t>(most, std::count_if(blocks.begin(), blocks.end(), [&](const Block& b) {
                               return b.begin <= at.begin && at.begin < b.end;
                             }));
  }
  return most;
}

struct PagesRecord {
  int cases = 0, moved = 0;
  double worst = 1;
};

void expect_laws(const std::vector<Block>& blocks, const PageOptions& options, PagesRecord& record) {
  const Packing packing = pack(blocks, {.alignment = options.alignment, .steps = 0});
  const PagedPacking paged = in_pages(blocks, packing, options);
  expect_apart(blocks, paged);
  EXPECT_EQ(paged.live_bytes, packing.live_bytes);
  EXPECT_GE(paged.height, paged.live_bytes);
  EXPECT_LE(paged.height, packing.height);
  EXPECT_EQ(paged, in_pages(blocks, packing, options)) << "another placement at the second run";
  // Each block breaks up two pages at most.
  EXPECT_LE(paged.height.count(), packing.live_bytes.count() +
                                      options.page.count() * (2 * most_blocks_at_once(blocks) + 2));
  if (options.page == options.alignment) {
    EXPECT_EQ(paged.height, packing.live_bytes) << "nothing is broken up";
  }
  ++record.cases;
  record.moved += paged.height < packing.height;
  if (paged.live_bytes > Bytes(0)) {
    record.worst = std::max(record.worst, static_cast<double>(paged.height.count()) /
                                              static_cast<double>(paged.live_bytes.count()));
  }
}

// Checks pages that are as large as the alignment, and larger ones.
void expect_laws(const char* name, int cases, int least_moved,
                 const std::function<std::vector<Block>(std::mt19937_64&)>& draw) {
  for (const int64_t page : {64, 256, 4096}) {
    constexpr uint64_t kSeed = 9;
    std::mt19937_64 random(kSeed);
    PagesRecord record;
    for (int number = 0; number < test_scale(cases); ++number) {
      const std::vector<Block> blocks = draw(random);
      SCOPED_TRACE(fmt::format("{}, pages of {}, seed {}, case {}", name, page, kSeed, number));
      expect_laws(blocks, {.page = Bytes(page)}, record);
      if (::testing::Test::HasFailure()) return;
    }
    std::cout << fmt::format(
        "{}, pages of {}: {} cases, {} lower than packed, worst {:.4f} of the live bytes\n", name,
        page, record.cases, record.moved, record.worst);
    EXPECT_GE(100 * record.moved, least_moved * record.cases);
  }
}

TEST(PagesProperty, RandomBlocks) {
  expect_laws("long lives", 40, 40, [](std::mt19937_64& random) {
    return random_blocks(random,
                         {.blocks = 80, .times = 100, .max_time = 100, .max_bytes = 2'000'000});
  });
  expect_laws("small and empty", 40, 0, [](std::mt19937_64& random) {
    return random_blocks(
        random, {.blocks = 40, .times = 30, .max_time = 20, .max_bytes = 900, .empty = true});
  });
}

TEST(PagesProperty, BlocksThatFillEveryMoment) {
  expect_laws("full", 20, 40, [](std::mt19937_64& random) {
    std::vector<Block> blocks = full_blocks(random, 40, 60, 12);
    for (Block& block : blocks) block.bytes = block.bytes * 200'000;
    return blocks;
  });
}

TEST(PagesProperty, TrainingSteps) {
  expect_laws("training", 15, 0,
              [](std::mt19937_64& random) { return training_blocks(random, 25, 3); });
}

// Compares ranges with a flag for each integer.
TEST(PagesProperty, RangesAreSets) {
  using internal::packing::Range;
  constexpr int64_t kMost = 60;
  std::mt19937_64 random(11);
  internal::packing::Ranges ranges;
  std::vector<bool> flags(kMost, false);
  for (int step = 0; step < 3000; ++step) {
    const auto a = static_cast<int64_t>(random() % kMost),
               b = static_cast<int64_t>(random() % kMost);
    const Range range{std::min(a, b), std::max(a, b)};
    const bool inside =
        range.size() > 0 && std::all_of(flags.begin() + range.begin, flags.begin() + range.end,
                                        [](bool flag) { return flag; });
    if (range.size() > 0) {
      EXPECT_EQ(ranges.contains(range), inside);
    }
    int64_t removed = 0;
    if (step % 2 == 0) {
      ranges.add(range);
    } else {
      for (const Range& part : ranges.remove(range)) removed += part.size();
      EXPECT_EQ(removed, std::count(flags.begin() + range.begin, flags.begin() + range.end, true));
    }
    std::fill(flags.begin() + range.begin, flags.begin() + range.end, step % 2 == 0);
    std::vector<Range> expected;
    for (int64_t x = 0; x < kMost; ++x) {
      if (!flags[static_cast<size_t>(x)]) continue;
      if (expected.empty() || expected.back().end != x) expected.push_back({x, x});
      expected.back().end = x + 1;
    }
    ASSERT_EQ(ranges.all(), expected) << "step " << step;
    const int64_t size = 1 + static_cast<int64_t>(random() % 9);
    Range best;
    for (const Range& one : expected) {
      if (one.size() >= size && (best.size() == 0 || one.size() < best.size())) best = one;
    }
    EXPECT_EQ(ranges.best_fit(size), best);
  }
}

}  // namespace
}  // namespace reprise::testing
