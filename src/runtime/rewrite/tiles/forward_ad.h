// This is the derivative of a group of element-wise calls, from its recorded backward.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/rewrite/tiles/tile_pieces.h"

namespace reprise::runtime::internal::rewrite {

// A Derivative says how a choice keeps derivatives in place of what its backward reads; or why it
// cannot.
struct Derivative {
  std::string refusal = {};  // empty: `pieces` are the realization
  std::vector<TilePiece> pieces = {};
  std::vector<int32_t> kept = {};  // the values that hold the derivatives
};

// Adds the values of the derivatives to the step if there is no refusal.
Derivative derivative_of(Rewriter& rewriter, const TileGroups& groups, const TileChoice& choice);

}  // namespace reprise::runtime::internal::rewrite
