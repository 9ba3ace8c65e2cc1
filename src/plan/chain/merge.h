// merge_stages() makes a shorter chain whose stages are blocks of neighbouring stages. A block is
// swept as a whole, kept as a whole, or kept except for some of its stages, which its backward
// recomputes. Every plan of the shorter chain is a plan of the whole chain with the same cost and
// no more memory. So it gives good plans for a small part of the work that the best plan takes.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/chain/model.h"
#include "plan/chain/trace.h"

namespace reprise::internal::chain {

// A BlockOption says what an option of a block stands for.
struct BlockOption {
  size_t option = 0;       // the same option for each stage of the block
  std::vector<bool> kept;  // by stage; the others run twice
};

struct MergedChain {
  ChainModel model;
  std::vector<size_t> starts;                     // the first stage of every block, and L
  std::vector<std::vector<BlockOption>> options;  // by block, as in model.options
};

// Makes about `blocks` blocks of similar length, cut where the boundaries are small.
MergedChain merge_stages(const ChainModel& model, size_t blocks);

// Returns the same plan on the stages. O(runs).
Trace split_blocks(const ChainModel& model, const MergedChain& merged, const Trace& plan);

}  // namespace reprise::internal::chain
