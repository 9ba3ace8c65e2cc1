// Says what crosses from the groups of a forward to those of its backward.
#pragma once

#include <vector>

#include "runtime/rewrite/tiles/tile_pieces.h"

namespace reprise::runtime::internal::rewrite {

// Returns the realizations of a choice. The group of a forward and the group of the backward that
// belongs to it are one choice. Its realizations differ in what crosses from the forward to the
// backward:
// - everything that crosses in plain training: this saves time, because a group goes through memory
//   once;
// - the operands of the forward group: the backward makes again what the forward made of them;
// - these and the results of functions that are dear to compute (tanh, exp, ...).
// A value that some other call of the backward reads is there anyway and always crosses. The second
// and the third realization are left out where nothing is made again, or where they are like one
// before.
std::vector<std::vector<TilePiece>> crossings(const Rewriter& rewriter, const TileGroups& groups,
                                              const TileChoice& choice);

// Returns whether the function takes several times as long as an arithmetic operation.
bool is_dear(const ElementCall& call);

}  // namespace reprise::runtime::internal::rewrite
