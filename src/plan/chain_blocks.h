// Long chains made short: neighbouring stages as one. A block is swept, kept and reversed as a
// whole, so that every plan of the short chain is one of the long chain, checkpointed at borders of
// blocks only.
#pragma once

#include <cstddef>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/plan.h"

namespace reprise::internal {

// Where each block begins, and at the end the number of stages. Blocks of about equal numbers of
// stages, with borders at small activations.
std::vector<size_t> block_borders(const Chain& chain, size_t blocks);

// Each block has one option: all its stages kept with the fastest of theirs. Its workspaces are
// such that it needs at least the memory that its stages need one after the other. O(stages).
Chain merge_blocks(const Chain& chain, const std::vector<size_t>& borders);

// A plan of the merged chain, as runs of the chain itself.
std::vector<Run> expand_blocks(const Chain& chain, const std::vector<size_t>& borders,
                               const std::vector<Run>& runs);

}  // namespace reprise::internal
