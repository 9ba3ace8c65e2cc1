// An Outcome holds the effects of a training step, so that steps can be compared.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/state/park.h"
#include "runtime/state/random_state.h"

namespace reprise::training {

// The tensors and step counts of an optimizer.
struct OptimizerState {
  runtime::internal::state::Parked tensors;
  std::vector<int64_t> steps;
};

// An Outcome lies outside the memory that is counted.
struct Outcome {
  runtime::internal::state::Parked loss, gradients, buffers;
  runtime::internal::state::RandomState random;
  runtime::internal::state::Parked parameters = {};
  OptimizerState state = {};
};

// Writes stored values back into the tensors, below autograd.
void put_back(const runtime::Tensors& tensors, const runtime::internal::state::Parked& saved);

// Returns whether both outcomes are equal to the bit.
bool equal(const Outcome& a, const Outcome& b);

// Returns whether what the forward leaves is equal to the bit: loss, buffers and random state.
bool equal_forward(const Outcome& a, const Outcome& b);

// Returns the largest relative difference: the largest difference of an element over the largest
// element of its tensor. For parameters the difference is over the largest change from `start`. The
// result is infinite if anything differs by more than rounding: the random state, whole numbers, or
// a NaN that only one outcome has.
double difference(const Outcome& a, const Outcome& b, const runtime::Tensors& start);

// Moves the elements of floating-point tensors to the next number, up and down in turn.
void move_by_last_bit(const runtime::Tensors& tensors);

}  // namespace reprise::training
