// Tests in_pages() at its edges, and on blocks placed by hand.
#include "reprise/pack/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::testing {
namespace {

using Extents = std::vector<std::vector<Extent>>;

constexpr int64_t kPage = 4096;

Bytes pages(int64_t count) { return Bytes(count * kPage); }

Extent extent(int64_t offset, int64_t bytes) { return {Bytes(offset), Bytes(bytes)}; }

// Makes three blocks of a page, the middle one of which stays, and then a block of `last` bytes
// that stands above them. No gap is large enough for it.
std::vector<Block> around_a_page(int64_t last) {
  return {{pages(1), 0, 2}, {pages(1), 0, 4}, {pages(1), 0, 2}, {Bytes(last), 2, 4}};
}

// Places the blocks at these offsets.
Packing at(const std::vector<Block>& blocks, const std::vector<int64_t>& offsets) {
  Packing packing{.offsets = {},
                  .height = {},
                  .live_bytes = live_bytes(blocks),
                  .lower_bound = {},
                  .method = {}};
  for (size_t k = 0; k < blocks.size(); ++k) {
    packing.offsets.push_back(Bytes(offsets[k]));
    const Bytes rounded((blocks[k].bytes.count() + 63) / 64 * 64);
    packing.height = std::max(packing.height, packing.offsets[k] + rounded);
  }
  packing.lower_bound = packing.live_bytes;
  return packing;
}

// Returns the first violation without its block numbers.
std::string fault(const std::vector<Block>& blocks, const PagedPacking& paged) {
  const auto violations = verify_pages(blocks, paged);
  return violations.empty() ? "none" : violations.front().message;
}

TEST(Pages, ABlockIsCutWhereNoGapIsLargeEnough) {
  const std::vector<Block> blocks = around_a_page(2 * kPage);
  const Packing packing = at(blocks, {0, kPage, 2 * kPage, 3 * kPage});
  const PagedPacking paged = in_pages(blocks, packing);
  EXPECT_EQ(packing.height, pages(5));
  EXPECT_EQ(paged.height, pages(3));
  EXPECT_EQ(paged.live_bytes, pages(3));
  EXPECT_EQ(paged.extents, (Extents{{extent(0, kPage)},
                                    {extent(kPage, kPage)},
                                    {extent(2 * kPage, kPage)},
                                    {extent(0, kPage), extent(2 * kPage, kPage)}}));
}

TEST(Pages, TheRestOfTheLastPageIsForSmallBlocks) {
  std::vector<Block> blocks = around_a_page(kPage + 100);
  blocks.push_back({Bytes(1000), 3, 4});
  const PagedPacking paged =
      in_pages(blocks, at(blocks, {0, kPage, 2 * kPage, 3 * kPage, 6 * kPage}));
  EXPECT_EQ(paged.height, pages(3));
  EXPECT_EQ(paged.extents[3], (std::vector{extent(0, kPage), extent(2 * kPage, 128)}));
  EXPECT_EQ(paged.extents[4], (std::vector{extent(2 * kPage + 128, 1024)}));
}

TEST(Pages, PagesThatSmallBlocksBreakUpAreMissing) {
  // There is a small block in the middle of each page, and then a block of a page.
  std::vector<Block> blocks = {
      {pages(1), 0, 1}, {pages(1), 0, 1}, {Bytes(64), 1, 9}, {Bytes(64), 1, 9}, {pages(1), 2, 3}};
  const PagedPacking paged =
      in_pages(blocks, at(blocks, {0, kPage, 2048, kPage + 2048, 10 * kPage}));
  EXPECT_EQ(paged.height, pages(3));
  EXPECT_EQ(paged.extents[4], (std::vector{extent(2 * kPage, kPage)}));
}

TEST(Pages, AGapThatNobodyNeedsIsBetterThanACut) {
  // The last block could have pages 0 and 2 now, but another block will need page 2. There is a gap
  // at 3.
  std::vector<Block> blocks = {{pages(1), 0, 2}, {pages(1), 0, 9}, {pages(1), 0, 2},
                               {pages(2), 0, 2}, {pages(2), 2, 9}, {pages(1), 3, 9}};
  const PagedPacking paged =
      in_pages(blocks, at(blocks, {0, kPage, 2 * kPage, 3 * kPage, 5 * kPage, 2 * kPage}));
  EXPECT_EQ(paged.height, pages(5));
  EXPECT_EQ(paged.extents[4], (std::vector{extent(3 * kPage, 2 * kPage)}));
  EXPECT_EQ(paged.extents[5], (std::vector{extent(2 * kPage, kPage)}));
}

TEST(Pages, PagesNeededLastAreTakenFirst) {
  // Block 5 can have page 4, which nobody needs. Page 0 will be needed before page 2.
  const std::vector<Block> blocks = {{pages(1), 0, 2}, {pages(1), 0, 9}, {pages(1), 0, 2},
                                     {pages(1), 0, 9}, {pages(1), 0, 2}, {pages(2), 2, 5},
                                     {pages(1), 3, 4}, {pages(1), 4, 5}};
  const PagedPacking paged = in_pages(
      blocks, at(blocks, {0, kPage, 2 * kPage, 3 * kPage, 4 * kPage, 5 * kPage, 0, 2 * kPage}));
  EXPECT_EQ(paged.height, pages(5));
  EXPECT_EQ(paged.extents[5], (std::vector{extent(2 * kPage, kPage), extent(4 * kPage, kPage)}));
  EXPECT_EQ(paged.extents[7], (std::vector{extent(0, kPage)})) << "whose page was taken";
}

TEST(Pages, APackingWithinAPageOfTheLiveBytesIsKept) {
  const std::vector<Block> blocks = {{Bytes(6400), 0, 2}, {Bytes(6400), 1, 3}};
  const Packing packing = at(blocks, {64, 7000 / 64 * 64 + 128});
  const PagedPacking paged = in_pages(blocks, packing);
  EXPECT_EQ(paged.height, packing.height);
  EXPECT_EQ(paged.extents, (Extents{{extent(64, 6400)}, {extent(7104, 6400)}}));
}

TEST(Pages, BlocksOfNothingHaveNoBytes) {
  EXPECT_EQ(in_pages({}, pack({})).height, Bytes(0));
  const std::vector<Block> blocks = {{Bytes(0), 0, 5}, {Bytes(100), 3, 3}, {Bytes(100), 3, 4}};
  EXPECT_EQ(in_pages(blocks, at(blocks, {0, 0, 100 * 64})).extents,
            (Extents{{extent(0, 0)}, {extent(0, 0)}, {extent(0, 128)}}));
}

TEST(Pages, RefusesWhatIsNoPackingOfTheBlocks) {
  const std::vector<Block> blocks = {{Bytes(100), 0, 5}, {Bytes(100), 3, 6}};
  EXPECT_THROW(in_pages(blocks, at(blocks, {0, 64})), InputError);
  EXPECT_THROW(in_pages(blocks, pack({})), InputError);
  for (const int64_t page : {-4096, 0, 100}) {
    EXPECT_THROW(in_pages(blocks, pack(blocks), {.page = Bytes(page)}), InputError) << page;
  }
}

TEST(VerifyPages, NamesWhatIsWrong) {
  const std::vector<Block> blocks = around_a_page(2 * kPage);
  const PagedPacking good = in_pages(blocks, at(blocks, {0, kPage, 2 * kPage, 3 * kPage}));
  EXPECT_EQ(fault(blocks, good), "none");

  PagedPacking bad = good;
  bad.extents[3][1].offset = pages(1);
  EXPECT_NE(fault(blocks, bad).find("extents of blocks 1 and 3"), std::string::npos)
      << fault(blocks, bad);
  bad = good;
  bad.extents[3][1].offset += Bytes(64);
  EXPECT_EQ(fault(blocks, bad), "block 3 is cut inside a page");
  bad = good;
  bad.extents[3] = {extent(0, 64), extent(2 * kPage, 2 * kPage - 64)};
  EXPECT_EQ(fault(blocks, bad), "block 3 is cut inside a page");
  bad = good;
  bad.extents[3][1].bytes -= Bytes(64);
  EXPECT_EQ(fault(blocks, bad), "block 3 has 8128 bytes of the 8192 that it needs");
  bad = good;
  bad.extents[3] = {extent(0, 3 * kPage), extent(2 * kPage, -kPage)};
  EXPECT_EQ(fault(blocks, bad), "block 3 has an extent of negative size");
  bad = good;
  bad.extents[0][0].offset = Bytes(-64);
  EXPECT_NE(fault(blocks, bad), "none");
  bad = good;
  bad.height -= Bytes(64);
  EXPECT_NE(fault(blocks, bad).find("height"), std::string::npos);
  bad = good;
  bad.live_bytes -= Bytes(64);
  EXPECT_NE(fault(blocks, bad).find("live bytes"), std::string::npos);
  bad = good;
  for (const int64_t page : {0, 100}) {
    EXPECT_FALSE(verify_pages(blocks, good, {.page = Bytes(page)}).empty()) << page;
  }
  bad.extents.pop_back();
  EXPECT_NE(fault(blocks, bad).find("for 3 blocks, of 4"), std::string::npos) << fault(blocks, bad);
}

}  // namespace
}  // namespace reprise::testing
