// Makes realizations of a choice from what is run in tiles behind which call.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/tiles/tile_groups.h"
#include "runtime/rewrite/tiles/tile_program.h"

namespace reprise::runtime::internal::rewrite {

// A TilePiece is one op of a realization: calls that run in tiles.
struct TilePiece {
  std::string name = {};  // "rebuild"; empty: that of the way in which it runs, such as "tiles"
  int32_t after = -1;     // the call that it follows
  TileSource source = {};
};

// Returns the values that calls of the list make and that something outside the set reads, or that
// are results of the step.
std::vector<int32_t> values_leaving(const Rewriter& rewriter, const TileGroups& groups,
                                    const std::vector<int32_t>& calls,
                                    const std::set<int32_t>& readers_inside);

// Returns the values that the source reads and does not make.
std::set<int32_t> values_entering(const TileSource& source);

// Adds the realization that runs these pieces in place of the calls of the choice. A piece whose
// operand nobody reads later also has a variant that writes over it. Pieces without outputs are
// left out. Adds nothing if a piece has no tile that suits it.
void add_pieces(Rewriter& rewriter, const TileChoice& choice, const std::string& name,
                Exactness exactness, const std::vector<TilePiece>& pieces);

}  // namespace reprise::runtime::internal::rewrite
