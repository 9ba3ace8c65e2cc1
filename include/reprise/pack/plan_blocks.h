// plan_blocks() lists the memory blocks that a plan would ask an allocator for.
#pragma once

#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "reprise/pack/pack.h"

namespace reprise {

// Returns the values, duplicates and workspaces of a plan, without the fixed bytes. The clock has
// two ticks an action: action k runs from 2k to 2k + 1. A value that takes over the memory of
// another value continues the block of that value. The live_bytes() of the blocks with an alignment
// of 1 are simulate()'s peak without the fixed bytes.
//
// Not handled: the requests inside an operation. A workspace is one block that is live all the time
// that the operation runs, and the values that the operation consumes are gone when it starts
// (graph.h). The height of a packing is therefore that of the model, and not of an allocator that
// serves each request of a kernel.
//
// Throws InputError as simulate() does. O(actions * values per action).
// Only the device's memory has blocks; a value that comes back is a new one.
std::vector<Block> plan_blocks(const Graph& graph, const std::vector<Action>& actions,
                               const Machine& machine = {});

// A BlockOwner says for people what a block of plan_blocks() holds.
struct BlockOwner {
  ValueIndex value = -1;   // the first of the values that share the block; -1: a workspace
  OpIndex op = -1;         // the op that made it; -1: an input of the step
  bool temporary = false;  // a duplicate or a workspace: gone at the end of the op

  bool operator==(const BlockOwner&) const = default;
};

// Returns one owner for each block of plan_blocks(), in the same order. Errors and cost are those
// of plan_blocks().
std::vector<BlockOwner> block_owners(const Graph& graph, const std::vector<Action>& actions,
                                     const Machine& machine = {});

}  // namespace reprise
