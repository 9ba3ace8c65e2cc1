// The memory blocks of a plan: what an allocator would be asked for.
#pragma once

#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/pack/pack.h"

namespace reprise {

// Values, duplicates and workspaces, without the fixed bytes, on a clock of two ticks an action: action k
// runs from 2k to 2k + 1. A value that takes over the memory of another one continues its block.
// live_bytes() of them with an alignment of 1 is simulate()'s peak without the fixed bytes.
//
// Not handled: what happens inside an operation. A workspace is one block that is live all the time that
// the operation runs, and what it consumes is gone when it starts (graph.h): the height of a
// packing is that of the model, not of an allocator that serves each request of a kernel.
//
// Throws InputError as simulate(). O(actions * values per action).
std::vector<Block> plan_blocks(const Graph& graph, const std::vector<Action>& actions);

// What a block of plan_blocks() holds, for people.
struct BlockOwner {
  ValueIndex value = -1;   // of a value that is taken over: the first one; -1: a workspace
  OpIndex op = -1;         // that made it; -1: an input of the step
  bool temporary = false;  // a duplicate or a workspace: gone at the end of the op

  bool operator==(const BlockOwner&) const = default;
};

// One for each block of plan_blocks(), in the same order. Errors and cost as there.
std::vector<BlockOwner> block_owners(const Graph& graph, const std::vector<Action>& actions);

}  // namespace reprise
