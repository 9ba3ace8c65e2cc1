// Makes random blocks of memory for tests of packing.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reprise/pack/pack.h"

namespace reprise::testing {

struct RandomBlocksOptions {
  int blocks = 9;
  int64_t times = 8;      // begins and ends are in 0..times
  int64_t max_time = 8;   // live for 1..max_time
  int64_t max_bytes = 4;  // 1..max_bytes, or 0..max_bytes
  bool empty = false;     // also blocks of no bytes or no time
};

std::vector<Block> random_blocks(std::mt19937_64& random, const RandomBlocksOptions& options);

// Makes blocks of which exactly `bytes` are live at every time of 0..times, where a packing is
// hardest. Blocks have 1..4 bytes and are live for at most max_time.
std::vector<Block> full_blocks(std::mt19937_64& random, int64_t times, int64_t bytes,
                               int64_t max_time);

// Makes one training step of a random chain of so many stages, as the allocator sees it. Forwards
// keep what the backwards need, and these free it in reverse order. Every operation has
// temporaries. With `slots` > 0 only so many activations are stored at a time, and the others are
// recomputed from them, segment by segment. With 0, everything is kept.
std::vector<Block> training_blocks(std::mt19937_64& random, int stages, int slots);

// Writes the blocks as JSON, [[bytes, begin, end], ...], for failure messages.
std::string describe(const std::vector<Block>& blocks);

}  // namespace reprise::testing
