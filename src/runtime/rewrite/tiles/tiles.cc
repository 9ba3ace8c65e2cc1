// Runs connected groups of element-wise calls tile by tile. Tensors between the calls of a group
// exist as tiles only, and stay in the cache of the processor. crossing.h says in which ways.
//
// The kernels are ATen's own, and tiles begin and end where its vectors do (tile_trial.h). So the
// bits are those of plain training.
#include <vector>

#include "runtime/rewrite/tiles/crossing.h"

namespace reprise::runtime::internal::rewrite {

void tiles(Rewriter& rewriter) {
  const TileGroups groups(rewriter, rules_of_tiles(rewriter.recording()));
  for (const TileChoice& choice : groups.choices()) {
    for (const std::vector<TilePiece>& pieces : crossings(rewriter, groups, choice)) {
      add_pieces(rewriter, choice, "tiles", Exactness::kBitwise, pieces);
    }
  }
}

}  // namespace reprise::runtime::internal::rewrite
