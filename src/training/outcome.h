// What a training step leaves behind, to compare.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/state/park.h"
#include "runtime/state/random_state.h"

namespace reprise::training {

// Tensors and step counts of an optimizer.
struct OptimizerState {
  runtime::internal::state::Parked tensors;
  std::vector<int64_t> steps;
};

// Outside the memory that is counted.
struct Outcome {
  runtime::internal::state::Parked loss, gradients, buffers;
  runtime::internal::state::RandomState random;
  runtime::internal::state::Parked parameters = {};
  OptimizerState state = {};
};

// To the bit.
bool equal(const Outcome& a, const Outcome& b);

// The largest difference of an element over the largest element of its tensor, of parameters over the largest change
// from `start`; infinite where something differs that is not rounded: random state, whole numbers, a NaN that only one
// of them has.
double difference(const Outcome& a, const Outcome& b, const runtime::Tensors& start);

// Moves elements of floating-point tensors to the next number, up and down in turn.
void move_by_last_bit(const runtime::Tensors& tensors);

}  // namespace reprise::training
