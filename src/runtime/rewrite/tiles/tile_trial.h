// Tries whether an element-wise kernel leaves the same bits tile by tile.
#pragma once

#include "runtime/rewrite/tiles/element_call.h"

namespace reprise::runtime::internal::rewrite {

// Tiles are multiples of so many elements, counted from where a thread of ATen would begin. Vectors
// of the processor and unrolled loops divide it.
constexpr int64_t kTileAlignment = 512;

// Runs `original`, the recorded call, on random operands as a whole, and `call` on the same operands
// in tiles of one and of several alignments, with tails of several lengths. Returns whether all bits
// agree and no kernel asked for memory of its own. The operands have all kinds of numbers. An
// operator that refuses them fails the trial.
//
// ATen computes the ends of a range one element at a time, and the rest in vectors. For functions
// the two differ in the last bit. Aligned tiles have their ends where the whole has them. A range
// of a single element is computed in a third way. It is tried only if tiles of the call's elements
// can end with one.
bool passes_trial(const ElementCall& call, const step::Call& original);
// Returns whether tiles of so many elements can end with a tile of a single one.
bool ends_with_one(int64_t elements);

// Makes a number of a tensor of one element, in the type in which a call computes. For types of 16
// bits the number stays as it is, because kernels compute with its unrounded value.
at::Tensor number_for_tiles(const at::Tensor& number, at::ScalarType type);

}  // namespace reprise::runtime::internal::rewrite
