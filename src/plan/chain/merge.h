// A shorter chain whose stages are blocks of neighbouring stages. A block is swept as a whole, kept
// as a whole, or kept but for some of its stages, which its backward computes again. Every plan of
// it is a plan of the whole chain, of the same cost and no more memory: good plans at a small part
// of the price of the best one.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/chain/model.h"
#include "plan/chain/trace.h"

namespace reprise::internal::chain {

// What an option of a block stands for.
struct BlockOption {
  size_t option = 0;       // of each of its stages
  std::vector<bool> kept;  // by stage; the others run twice
};

struct MergedChain {
  ChainModel model;
  std::vector<size_t> starts;                     // the first stage of every block, and L
  std::vector<std::vector<BlockOption>> options;  // by block, as in model.options
};

// About `blocks` blocks of similar length, cut where the boundaries are small.
MergedChain merge_stages(const ChainModel& model, size_t blocks);

// The same plan on the stages. O(runs).
Trace split_blocks(const ChainModel& model, const MergedChain& merged, const Trace& plan);

}  // namespace reprise::internal::chain
