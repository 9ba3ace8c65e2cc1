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

}  // namespace reprise
