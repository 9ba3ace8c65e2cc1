// The memory of an arena is in pages. Every block is separate from all others, wherever its pages
// are.
#include "runtime/arena/page_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "reprise/pack/pack.h"
#include "runtime/arena/arena.h"
#include "support/random_blocks.h"

namespace reprise::runtime::testing {

using internal::arena::PageMemory;
using internal::arena::StepArena;
using internal::arena::system_page;

namespace {

using reprise::testing::full_blocks;

// Fills each block with bytes of its own, from its first moment to its last.
class Bytewise {
 public:
  static void write(void* data, const Block& block, size_t number) {
    std::memset(data, mark(number), static_cast<size_t>(block.bytes.count()));
  }
  static bool intact(const void* data, const Block& block, size_t number) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    return std::all_of(bytes, bytes + block.bytes.count(),
                       [&](unsigned char byte) { return byte == mark(number); });
  }

 private:
  static unsigned char mark(size_t number) { return static_cast<unsigned char>(1 + number % 251); }
};

size_t scattered(const PagedPacking& paged) {
  return static_cast<size_t>(std::count_if(paged.extents.begin(), paged.extents.end(),
                                           [](const auto& extents) { return extents.size() > 1; }));
}

struct Event {
  int64_t time;
  bool begins;
  size_t block;
};

// Returns the begins and ends in order of time, ends first.
std::vector<Event> events_of(const std::vector<Block>& blocks) {
  std::vector<Event> events;
  for (size_t k = 0; k < blocks.size(); ++k) {
    events.push_back({blocks[k].begin, true, k});
    events.push_back({blocks[k].end, false, k});
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.time, a.begins) < std::pair(b.time, b.begins);
  });
  return events;
}

// Makes blocks that fill every moment. No packing of whole blocks is as low as their live bytes.
std::vector<Block> hard_blocks(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Block> blocks = full_blocks(random, 40, 60, 12);
  for (Block& block : blocks) block.bytes = block.bytes * 100'000;
  return blocks;
}

TEST(PageMemoryTest, EveryBlockKeepsWhatIsWritten) {
  size_t cut = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<Block> blocks = hard_blocks(seed);
    const PagedPacking paged =
        in_pages(blocks, pack(blocks, {.steps = 0}), {.page = system_page()});
    cut += scattered(paged);
    const auto memory = PageMemory::map(paged);
    ASSERT_NE(memory, nullptr);
    for (const Event& event : events_of(blocks)) {
      void* const data = memory->address(event.block);
      if (event.begins) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0);
        EXPECT_TRUE(memory->contains(data));
        Bytewise::write(data, blocks[event.block], event.block);
      } else {
        ASSERT_TRUE(Bytewise::intact(data, blocks[event.block], event.block)) << event.block;
      }
    }
    int elsewhere = 0;
    EXPECT_FALSE(memory->contains(&elsewhere));
  }
  EXPECT_GT(cut, 100);
}

TEST(PageMemoryTest, AnArenaOfNothingHasNone) {
  EXPECT_EQ(PageMemory::map(in_pages({}, pack({}))), nullptr);
}

// Does a run like that of `blocks`: allocates, writes, checks, frees.
bool run(StepArena& arena, const std::vector<Block>& blocks) {
  std::vector<void*> data(blocks.size());
  bool intact = true;
  arena.begin_run();
  for (const Event& event : events_of(blocks)) {
    const Block& block = blocks[event.block];
    const int64_t bytes = (block.bytes.count() + 63) / 64 * 64;
    void*& at = data[event.block];
    if (event.begins) {
      at = arena.take(bytes);
      if (at == nullptr) return false;
      Bytewise::write(at, block, event.block);
    } else {
      intact = intact && Bytewise::intact(at, block, event.block);
      arena.give_back(at, bytes);
    }
  }
  arena.end_run();
  return intact;
}

TEST(PageMemoryTest, AnArenaServesScatteredBlocks) {
  const std::vector<Block> blocks = hard_blocks(1);
  const Bytes packed = pack(blocks).height;
  StepArena arena;
  EXPECT_TRUE(run(arena, blocks)) << "recorded";
  arena.pack_blocks(packed - Bytes(1));
  ASSERT_TRUE(arena.ready());
  for (int n = 0; n < 3; ++n) {
    EXPECT_TRUE(run(arena, blocks));
    EXPECT_EQ(arena.served(), static_cast<int64_t>(blocks.size()));
    EXPECT_EQ(arena.fallbacks(), 0);
  }
}

// The child's writes are its own, and its arena serves nothing more.
TEST(PageMemoryTest, AChildDoesNotWriteIntoItsParent) {
  const std::vector<Block> blocks = {{system_page(), 0, 2},
                                     {system_page(), 0, 4},
                                     {system_page(), 0, 2},
                                     {system_page() * 2, 2, 4}};
  Packing packing{.offsets = {Bytes(0), system_page(), system_page() * 2, system_page() * 3},
                  .height = system_page() * 5,
                  .live_bytes = system_page() * 3,
                  .lower_bound = system_page() * 3,
                  .method = {}};
  const PagedPacking paged = in_pages(blocks, packing, {.page = system_page()});
  ASSERT_EQ(scattered(paged), 1);
  const auto memory = PageMemory::map(paged);
  ASSERT_NE(memory, nullptr);
  for (const size_t k : {1, 3}) Bytewise::write(memory->address(k), blocks[k], k);
  EXPECT_FALSE(memory->of_the_parent());
  const pid_t child = fork();
  if (child == 0) {
    bool well = memory->of_the_parent();
    for (const size_t k : {1, 3}) {
      well = well && Bytewise::intact(memory->address(k), blocks[k], k);
      Bytewise::write(memory->address(k), blocks[k], k + 7);
      well = well && Bytewise::intact(memory->address(k), blocks[k], k + 7);
    }
    _exit(well ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(memory->of_the_parent());
  for (const size_t k : {1, 3}) {
    EXPECT_TRUE(Bytewise::intact(memory->address(k), blocks[k], k)) << k;
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
