// Stores a derivative between the forward and the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "reprise/runtime/nn/forward_ad.h"
#include "runtime/nn/tiling.h"

namespace reprise::runtime::internal::nn {

// The derivative by one operand, stored tile by tile. `scales` is defined for kScaled8 only; its row
// `n` has the scales of tile `n`, one for each 256 elements.
struct Stored {
  at::Tensor values;
  at::Tensor scales = {};
};

// Allocates room for derivatives of a type.
Stored room_for(const Tiling& tiling, runtime::nn::DerivativeStorage storage, at::ScalarType type);

// Stores the derivative of a tile; an undefined one is zero.
void store(const Tiling& tiling, const Tile& tile, const at::Tensor& derivative, const Stored& to);

// Writes gradient * derivative for all elements that begin at `begin` in the memory order of the
// stored values. The first and the last argument are parts of tensors with that order, as one
// dimension; `number` is the tile's.
void multiply(const at::Tensor& gradient, const Stored& stored, int64_t number, int64_t begin,
              const at::Tensor& to);

}  // namespace reprise::runtime::internal::nn
